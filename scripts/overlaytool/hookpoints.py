"""Print, one line each, whether sglang knows flashinfer_mla_compact wherever it looks a name up.

Run by an interpreter that imports the applied tree, in a process of its own: the checks put
probes in place of functions. A name that is missing from one of these points is served all the
same, slower or with another backend, and nothing is logged.
"""

import argparse
import ast
import contextlib
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NAME = "flashinfer_mla_compact"
OVERLAY = f"sglang.srt.layers.attention.{NAME}"
FLAGS = (
    "--attention-backend",
    "--prefill-attention-backend",
    "--decode-attention-backend",
    "--speculative-draft-attention-backend",
)
PLUGINS = "sglang.srt.plugins"
MODULES = {
    "registry": "sglang.srt.layers.attention.attention_registry",
    "factory": f"{OVERLAY}.factory",
    "registration": f"{OVERLAY}.registration",
    "backend": f"{OVERLAY}.backend",
    "mha": "sglang.srt.layers.attention.flashinfer_backend",
    "server_args": "sglang.srt.server_args",
    "chunked": "sglang.srt.model_executor.model_runner_components.misc_utils",
    "handlers": "sglang.srt.models.deepseek_common.attention_backend_handler",
    "absorbed": "sglang.srt.models.deepseek_common.attention_forward_methods.forward_mla",
    "drafts": "sglang.srt.speculative.draft_utils",
    "dflash": "sglang.srt.speculative.dflash_utils",
    "sarvam": "sglang.srt.models.sarvam_moe",
    "hybrid": "sglang.srt.layers.attention.hybrid_attn_backend",
    "engine": "sglang.srt.entrypoints.engine",
}
# The modules that look there in releases that do not have the ones above.
EARLIER = {
    "chunked": "sglang.srt.model_executor.model_runner",
    "absorbed": "sglang.srt.models.deepseek_v2",
}
FEATURES = ("dflash", "sarvam")  # A release without the module has nothing that would look there.
EXIT_CODES = """exit codes:
  0  every hook point is there
  1  one is missing
  2  usage
  6  the tree could not be imported"""

Modules = SimpleNamespace
Check = Callable[[Modules], bool]


def registry(m: Modules) -> bool:
    """The factory is found by name and leads an MHA-shaped runner to FlashInfer's own factory."""
    m.factory.create_flashinfer_backend = lambda runner: "stock"
    create = m.registry.ATTENTION_BACKENDS.get(NAME)
    return create is not None and create(SimpleNamespace(use_mla_backend=False)) == "stock"


def flag(m: Modules, option: str) -> bool:
    parser = argparse.ArgumentParser()
    m.server_args.ServerArgs.add_cli_args(parser)
    action = parser._option_string_actions[option]
    return action.choices is None or NAME in action.choices


def chunked_prefix(m: Modules) -> bool:
    return NAME in m.chunked.CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS


def deepseek_handler(m: Modules) -> bool:
    handler = m.handlers.AttentionBackendRegistry.get_handler(NAME)
    return handler is m.handlers.handle_attention_flashinfer


def _passed_on(m: Modules) -> str:
    """The name that the handler registered for ours gives to the shared dispatch."""
    m.handlers._handle_attention_backend = lambda attn, batch, name: name
    return str(m.handlers.AttentionBackendRegistry.get_handler(NAME)(SimpleNamespace(), None))


def one_shot(m: Modules) -> bool:
    return _passed_on(m) in m.handlers.MHA_ONE_SHOT_SUPPORTED_BACKENDS


def ragged_switch(m: Modules) -> bool:
    """The dispatch heeds --flashinfer-mla-disable-ragged for the names in a literal of its own."""
    dispatch = _function(m.handlers, "_handle_attention_backend")
    heeded = [ast.unparse(node) for node in ast.walk(dispatch) if isinstance(node, ast.List)]
    return any(repr(_passed_on(m)) in names for names in heeded)


def separate_rope(m: Modules) -> bool:
    return NAME in m.absorbed.FORWARD_ABSORB_CORE_ATTENTION_BACKENDS


def dflash_mask(m: Modules) -> bool:
    backend = object.__new__(m.backend.FlashInferMLACompactAttnBackend)
    _, builds_mask = m.dflash.resolve_dflash_verify_mask_policy(backend)
    return not builds_mask


def sarvam_handler(m: Modules) -> bool:
    handler = m.sarvam.AttentionBackendRegistry.get_handler(NAME)
    return handler is m.sarvam._handle_separate_rope_backend


def draft(m: Modules, method: str) -> bool:
    """The draft factory knows the name, an MHA-shaped draft gets FlashInfer's MHA backend, and a
    release that stamps backends stamps it with our name."""
    m.factory.create_flashinfer_backend = lambda runner: SimpleNamespace(mha=True)
    m.mha.FlashInferMultiStepDraftBackend = lambda *arguments: SimpleNamespace(mha=True)
    m.drafts.attention_backends = lambda: (NAME, NAME)
    m.drafts.get_spec = lambda: SimpleNamespace(speculative_attention_mode="prefill")
    try:
        getattr(_probe(m), method)()
    except _Created as created:
        stamp = getattr(created.backend, "decode_attention_backend_str", NAME)
        return hasattr(created.backend, "mha") and stamp == NAME
    return False


class _Created(Exception):
    def __init__(self, backend: Any) -> None:
        super().__init__()
        self.backend = backend


def _probe(m: Modules) -> Any:
    class Probe(m.drafts.DraftBackendFactory):  # type: ignore[misc, name-defined]
        def _create_backend(self, name: str, backends: Any, error: str, **kwargs: Any) -> Any:
            raise _Created(super()._create_backend(name, backends, error))

    probe = object.__new__(Probe)
    config = SimpleNamespace(hf_config=None)
    model = SimpleNamespace(model_config=config, use_mla_backend=False)
    probe.__dict__.update(
        draft_model_runner=model,
        draft_attn_backend=NAME,
        speculative_num_steps=2,
        topk=1,
        qsa_profile=None,
        server_args=SimpleNamespace(speculative_attention_mode="prefill"),
    )
    return probe


def flashinfer_version(m: Modules) -> bool:
    """The condition over the engine's check of flashinfer_python names our backend, or the plugin
    checks it where the arguments are resolved."""
    resolving = ("resolve_once", "__post_init__")
    methods = (getattr(m.server_args.ServerArgs, name, None) for name in resolving)
    if any(getattr(method, "guards", None) == NAME for method in methods):
        return True
    for node in ast.walk(_function(m.engine, "_set_envs_and_config")):
        if isinstance(node, ast.If) and any(map(_checks_flashinfer, node.body)):
            return NAME in {c.value for c in ast.walk(node.test) if isinstance(c, ast.Constant)}
    return False


def _function(module: Any, name: str) -> ast.FunctionDef:
    body = ast.parse(inspect.getsource(module)).body
    return next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == name)


def _checks_flashinfer(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not call.args:
        return False
    names = ast.unparse(call.func), ast.unparse(call.args[0])
    return names == ("assert_pkg_version", "'flashinfer_python'")


def split_backends(m: Modules) -> bool:
    """With a prefill and a decode backend, ragged prefill of cached chunks is planned anew."""
    return hasattr(m.hybrid.HybridAttnBackend, "init_mha_chunk_metadata")


def points() -> Iterator[tuple[str, str, Check]]:
    """Every hook point: its name, the key of the module that looks there, and its check."""
    yield "attention registry", "registry", registry
    for option in FLAGS:
        yield option, "server_args", partial(flag, option=option)
    yield "chunked prefix cache", "chunked", chunked_prefix
    yield "DeepSeek handler", "handlers", deepseek_handler
    yield "one-shot MHA", "handlers", one_shot
    yield "ragged prefill switch", "handlers", ragged_switch
    yield "separate rope in absorbed MLA", "absorbed", separate_rope
    yield "draft decode", "drafts", partial(draft, method="create_decode_backend")
    yield "draft extend", "drafts", partial(draft, method="create_draft_extend_backend")
    yield "DFLASH verify without mask", "dflash", dflash_mask
    yield "Sarvam handler", "sarvam", sarvam_handler
    yield "FlashInfer version check", "engine", flashinfer_version
    yield "split prefill and decode", "hybrid", split_backends


def load(tree: Path | None) -> Modules:
    """Import what the points look at, after the plugins, as a server does.

    Raises ImportError where sglang is not the one in `tree`; else whatever an import raises.
    """
    with contextlib.suppress(ModuleNotFoundError):  # older releases load none
        importlib.import_module(PLUGINS).load_plugins()
    modules = Modules(**{key: _module(key) for key in MODULES})
    file = Path(modules.server_args.__file__).resolve()
    if tree is not None and not file.is_relative_to(tree.resolve()):
        raise ImportError(f"sglang was imported from {file}, which is not in {tree}")
    return modules


def _module(key: str) -> Any:
    """The module that looks there; None for a feature that the release does not have."""
    try:
        return importlib.import_module(MODULES[key])
    except ModuleNotFoundError as error:
        # Not one that the module itself misses: its own name, or that of a package above it.
        if not f"{MODULES[key]}.".startswith(f"{error.name}."):
            raise
    if key in FEATURES:
        return None
    return importlib.import_module(EARLIER.get(key, MODULES[key]))


def report(modules: Modules) -> bool:
    """Print a line for each point; whether all are there."""
    if _wrong(registry, modules):
        with contextlib.suppress(RuntimeError):  # one missing factory must not hide the rest
            modules.registration.register()
    found = [
        (name, getattr(modules, key).__name__, _wrong(check, modules))
        for name, key, check in points()
        if getattr(modules, key) is not None
    ]
    width = max(len(name) for name, _, _ in found)
    for name, module, wrong in found:
        state, reason = ("MISSING", f": {wrong}") if wrong else ("ok", "")
        print(f"{state:<7}  {name:<{width}}  {module}{reason}")
    return not any(wrong for _, _, wrong in found)


def _wrong(check: Check, modules: Modules) -> str:
    """What is wrong with a point, empty when nothing; a check that can't run found no point."""
    try:
        return "" if check(modules) else "not registered"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="hookpoints",
        description=__doc__,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tree", type=Path, help="the folder that holds the sglang to look at")
    tree = parser.parse_args().tree
    here = str(Path(__file__).resolve().parent)  # its modules would hide installed ones
    sys.path[:] = [*([str(tree)] if tree else []), *(p for p in sys.path if p != here)]
    warnings.simplefilter("ignore")
    try:
        modules = load(tree)
    except Exception as error:
        print(
            f"hookpoints: cannot import the tree: {type(error).__name__}: {error}", file=sys.stderr
        )
        return 6
    return 0 if report(modules) else 1


if __name__ == "__main__":
    sys.exit(main())
