"""sglang calls `load` before it parses arguments, and in each process that it starts.

No file of sglang is changed: the package of this backend is imported from the wheel under the name
that it has in a patched tree, so modules and registrations are the same. A tree that is patched
serves by itself.

sglang logs an exception of a plugin and goes on. So whatever is wrong is kept, and said when a
server asks for our name; any other server goes on as if this package were absent.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import Any

from . import HOME, UnfitError

NAME = "flashinfer_mla_compact"
ATTENTION = "sglang.srt.layers.attention"
AGAIN = "install flashinfer-mla-compact again"
FIELDS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "speculative_draft_attention_backend",
)


def load() -> None:
    """Register the name, and stop a server that asks for it where it can't be served."""
    arguments: Any = importlib.import_module("sglang.srt.server_args")
    problem = ""
    try:
        if not _is_patched():
            _register(arguments)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}: {AGAIN}"
    _guard(arguments.ServerArgs, problem)
    # Also where it can't be served: the parser would hide the reason behind a list of choices.
    if NAME not in arguments.ATTENTION_BACKEND_CHOICES:
        arguments.add_attention_backend_choices([NAME])


def _is_patched() -> bool:
    """Whether the tree has the overlay's folder: all of it, or what the guard will refuse."""
    package = importlib.import_module(ATTENTION)
    return importlib.util.find_spec(f"{package.__name__}.{NAME}") is not None


def _register(arguments: Any) -> None:
    """What the patches do; nothing is registered unless every place is there."""
    registry: Any = importlib.import_module(f"{ATTENTION}.attention_registry")
    drafts: Any = importlib.import_module("sglang.srt.speculative.draft_utils")
    keep_chunks = arguments.add_chunked_prefix_cache_attention_backend
    register = registry.register_attention_backend(NAME)
    create_draft = _with_ours(drafts.DraftBackendFactory._create_backend)

    _import_package()
    keep_chunks(NAME)
    drafts.DraftBackendFactory._create_backend = create_draft
    register(_create_backend)


def _import_package() -> None:
    """Import the wheel's package as sglang's own.

    A folder more on sglang's path would not last: a namespace's path is computed again.
    """
    folder = HOME.joinpath("overlay", *ATTENTION.split("."), NAME)
    spec = importlib.util.spec_from_file_location(
        f"{ATTENTION}.{NAME}", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[spec.name] = module


def _factory() -> Any:
    _judge()  # arguments may have been resolved before plugins were loaded
    return importlib.import_module(f"{ATTENTION}.{NAME}.factory")


def _create_backend(runner: Any) -> Any:
    return _factory().create_backend(runner)


def _with_ours(create: Callable[..., Any]) -> Callable[..., Any]:
    """The draft factory's choice by name, with our name among the choices.

    Its maps are locals of two methods, which are told apart by what each has for "flashinfer".
    """
    stamps = "stamps_children" in inspect.signature(create).parameters

    @functools.wraps(create)
    def chosen(draft: Any, name: str, backends: dict[str, Any], *more: Any, **named: Any) -> Any:
        def ours() -> Any:
            decodes = backends["flashinfer"] == draft._create_flashinfer_decode_backend
            build = _factory().create_draft_decode_backend if decodes else _extend
            # Releases that stamp a backend with the name take both from here.
            return (NAME, build(draft)) if stamps else build(draft)

        return create(draft, name, {**backends, NAME: ours}, *more, **named)

    return chosen


def _extend(draft: Any) -> Any:
    return _create_backend(draft.draft_model_runner)


def _guard(server_args: Any, problem: str) -> None:
    """Judge the installation when the arguments of a server that asks for the name are resolved."""
    # Older releases resolve where they construct.
    method = "resolve_once" if hasattr(server_args, "resolve_once") else "__post_init__"
    resolve = getattr(server_args, method)

    @functools.wraps(resolve)
    def guarded(self: Any, *arguments: Any, **named: Any) -> Any:
        if NAME in (getattr(self, field, None) for field in FIELDS):
            _require_fit(problem)
        return resolve(self, *arguments, **named)

    guarded.guards = NAME  # type: ignore[attr-defined]
    setattr(server_args, method, guarded)


def _require_fit(problem: str) -> None:
    """Raises SystemExit, which no caller takes for an error that it may go on after."""
    try:
        _judge()  # first, as it names another release where that is the problem
    except UnfitError as error:
        problem = str(error)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}: {AGAIN}"
    if problem:
        raise SystemExit(f"{NAME}: {problem}")


@functools.cache  # arguments are resolved more than once
def _judge() -> None:
    from .fitness import require

    require()
