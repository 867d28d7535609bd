"""What of an installation is well, what is not, and how to fix it: one line each."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from overlaytool import contract, requirements, tree
from overlaytool.errors import Refusal
from overlaytool.pin import Pin
from overlaytool.state import APPLIED, FOREIGN, PRISTINE, Survey, other_release, survey

from doctortool import installation, server_arguments

WELL, FIX, NOTE = "ok", "fix", "note"
LEAST_CAPABILITY = (8, 0)
_CHECKED = ("flashinfer-python", "torch")
_KERNELS = ("sglang-kernel", "sgl-kernel")  # the name changed between releases
_FLASHINFER_PARTS = ("flashinfer-cubin", "flashinfer-jit-cache")


@dataclass(frozen=True)
class Line:
    """One finding: `mark` is "ok", "fix" (with a remedy) or "note" (not judged)."""

    mark: str
    subject: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.mark:<5} {self.subject:<18} {self.found}"
        return f"{text}: {self.remedy}" if self.remedy else text


def examine(pin: Pin, executable: str, server: argparse.Namespace | None) -> Iterator[Line]:
    """All findings, the interpreter's first; `server` holds parsed server arguments, if any."""
    python = installation.interpreter(executable)
    if python is None:
        found = f"{executable} does not run as a Python interpreter"
        yield Line(FIX, "python", found, "name another with --python")
    else:
        yield Line(WELL, "python", f"{python.python}, {executable}")
        yield from _sglang(pin, executable, python)
    gpus = installation.gpus()
    yield from _cards(gpus)
    yield from _cuda(python, installation.driver_cuda())
    capability = gpus[0].capability if gpus else None
    support = server_arguments.load("support")
    yield from _strategy(server_arguments.load("policy"), server, capability, python)
    if server is not None:
        yield from _server(support, server, capability, pin.release)


def _sglang(pin: Pin, executable: str, python: installation.Interpreter) -> Iterator[Line]:
    try:
        found = tree.of_interpreter(executable)
    except Refusal:
        remedy = f"install it with {executable} -m pip install sglang=={pin.release}"
        yield Line(FIX, "sglang", "not installed", remedy)
        return
    yield Line(WELL, "sglang", f"{found.version() or 'states no version'}, {found.package}")
    try:
        state = survey(found, pin.lock())
        if any(state.foreign()) and (other := other_release(found, pin)):
            raise Refusal(other)
        loads_plugins = found.read("sglang/srt/plugins/__init__.py") is not None
        plugin = python.versions.get(installation.PLUGIN) if loads_plugins else None
        if state.state == APPLIED or plugin:
            contract.require(pin, found.read)
        yield _overlay(pin, executable, state, plugin)
    except Refusal as refusal:
        what, _, remedy = str(refusal).partition(": ")
        yield Line(FIX, "overlay", what, remedy)
    yield from _packages(requirements.of_tree(found), python.versions, found.version())


def _overlay(pin: Pin, executable: str, state: Survey, plugin: str | None) -> Line:
    where = f"--pin {pin.release} --python {executable}"
    if state.gutted:
        remedy = f"run scripts/overlay unapply {where}, then install sglang=={pin.release} again"
        return Line(FIX, "overlay", "sglang was uninstalled from under the overlay", remedy)
    if state.state == APPLIED:
        return Line(WELL, "overlay", f"applied, pin {pin.release}")
    if state.state == FOREIGN:
        files = ", ".join(found.entry.path for found in state.foreign())
        remedy = f"run scripts/overlay unapply {where} --from-wheel FILE, then apply"
        return Line(FIX, "overlay", f"neither pristine nor applied: {files}", remedy)
    if state.state == PRISTINE and plugin:
        found = f"not applied; {installation.PLUGIN} {plugin} serves as a plugin"
        return Line(WELL, "overlay", found)
    what = "not applied" if state.state == PRISTINE else state.state
    return Line(FIX, "overlay", what, f"run scripts/overlay apply {where}")


def _packages(
    required: Mapping[str, str], installed: Mapping[str, str], release: str | None
) -> Iterator[Line]:
    for name in (*_CHECKED, *(kernel for kernel in _KERNELS if kernel in required)):
        wanted, version = requirements.exact(required.get(name)), installed.get(name)
        if wanted is None:
            yield Line(NOTE, name, f"{version or 'not installed'}, and sglang pins no version")
        elif version and version.split("+")[0] == wanted:
            yield Line(WELL, name, f"{version}, as sglang {release} pins it")
        else:
            found = f"{version or 'not installed'}, and sglang {release} pins {wanted}"
            yield Line(FIX, name, found, f"install {name}=={wanted}")
    flashinfer = installed.get("flashinfer-python", "")
    for part in _FLASHINFER_PARTS:
        version = installed.get(part)
        if version and version.split("+")[0] != flashinfer.split("+")[0]:
            found = f"{version} next to flashinfer-python {flashinfer or 'none'}"
            yield Line(FIX, part, found, "install both in one version, or uninstall this one")


def _cards(gpus: list[installation.Gpu]) -> Iterator[Line]:
    if not gpus:
        yield Line(NOTE, "gpu", "nvidia-smi shows none; run the doctor where the server runs")
    for gpu, count in Counter(gpus).items():
        found = f"{count} x {gpu.name}, compute capability {gpu.capability}, {gpu.memory}"
        if _numbers(gpu.capability) < LEAST_CAPABILITY:
            yield Line(FIX, "gpu", found, "FlashInfer MLA needs compute capability 8.0 or newer")
        else:
            yield Line(WELL, "gpu", f"{found}, driver {gpu.driver}")


def _cuda(python: installation.Interpreter | None, driver: str | None) -> Iterator[Line]:
    """A driver runs what was built for its own major CUDA release and for older ones."""
    if python is None or "torch" not in python.versions:
        return
    built = python.torch_cuda
    if built is None:
        remedy = f"install torch=={python.versions['torch'].split('+')[0]} built for CUDA"
        yield Line(FIX, "cuda", "torch is a CPU build", remedy)
    elif driver is None:
        yield Line(NOTE, "cuda", f"torch is built for CUDA {built}; no driver is seen here")
    elif _numbers(driver)[:1] < _numbers(built)[:1]:
        found = f"torch is built for CUDA {built}, the driver runs {driver}"
        yield Line(FIX, "cuda", found, "update the NVIDIA driver")
    else:
        yield Line(WELL, "cuda", f"torch is built for CUDA {built}, the driver runs {driver}")


def _strategy(
    policy: Any,
    server: argparse.Namespace | None,
    capability: str | None,
    python: installation.Interpreter | None,
) -> Iterator[Line]:
    try:
        settings = policy.read_settings(os.environ)
    except ValueError as error:
        what, _, remedy = str(error).partition(": ")
        yield Line(FIX, "strategy", what, remedy)
        return
    if settings.strategy == "stock":
        yield Line(NOTE, "strategy", f"stock, as {policy.STRATEGY_VARIABLE} asks")
        return
    triton = python.versions.get("triton") if python else None
    plain = triton is not None and _numbers(triton)[:2] < policy.GLUON_TRITON
    found = _decode_strategy(policy, settings, server, capability, plain)
    yield Line(WELL, "strategy", found)


def _decode_strategy(
    policy: Any,
    settings: Any,
    server: argparse.Namespace | None,
    capability: str | None,
    plain: bool,
) -> str:
    card = tuple(map(int, capability.split("."))) if capability else None
    most = policy.capacity_rows(sys.maxsize, settings, gathers=True)
    named = server is not None and server.max_total_tokens
    rows = server.max_total_tokens + server.page_size if server is not None and named else most
    heads = server_arguments.query_heads(server) if server is not None else None
    name, why = policy.strategy_of(policy.Means(rows, card, not plain), settings, heads)
    return f"{name}: {why}" if named else f"{name} for a pool of at most {most:,} rows: {why}"


def _server(
    support: Any, server: argparse.Namespace, capability: str | None, release: str
) -> Iterator[Line]:
    if not server_arguments.names_backend(server, support.NAME):
        remedy = f"add --attention-backend {support.NAME}"
        yield Line(FIX, "server", f"no attention-backend flag names {support.NAME}", remedy)
    config = server_arguments.model_config(server)
    if config is not None and config.get("kv_lora_rank") is None:
        yield _without_mla(config, support.NAME)
        return
    facts = server_arguments.facts(server, support, capability, release)
    if not support.casts_keys(facts):
        yield from _uncast(server, facts.pool_dtype)
        return
    reasons = support.refusals(facts)
    for reason in reasons:
        what, _, remedy = reason.partition(": ")
        yield Line(FIX, "server", what, remedy)
    for words in server.unjudged:
        yield Line(NOTE, "server", f"not judged: {words}")
    if not reasons and not server.unjudged:
        yield Line(WELL, "server", "nothing in these arguments is refused, judged by a table")
    for notice in support.notices(facts):
        yield Line(NOTE, "server", notice)


def _uncast(server: argparse.Namespace, dtype: str) -> Iterator[Line]:
    """Of a pool that needs no cast, so that stock serves it, whatever else is asked for."""
    for words in server.unjudged:
        yield Line(NOTE, "server", f"not judged: {words}")
    if server.unjudged:
        return
    found = f"a {dtype} pool needs no cast: the backend is stock FlashInfer MLA"
    if server.kv_cache_dtype == "auto":
        yield Line(FIX, "server", found, "add --kv-cache-dtype fp8_e4m3 to halve the cache")
    else:
        yield Line(NOTE, "server", found)


def _without_mla(config: Mapping[str, Any], name: str) -> Line:
    """Of a model whose config states no latent."""
    if "index_topk" in config:
        found = "a model with an indexer and without kv_lora_rank (DeepSeek-V4) is not served"
        return Line(FIX, "model", found, "leave the attention backend to sglang")
    return Line(NOTE, "model", f"no MLA model: {name} is sglang's flashinfer backend there")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
