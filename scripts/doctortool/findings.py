"""What of an installation is well, what is not, and how to fix it: one line each."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from overlaytool import contract, requirements, tree
from overlaytool.errors import Refusal
from overlaytool.pin import Pin
from overlaytool.state import APPLIED, FOREIGN, PRISTINE, Survey, other_release, survey

from doctortool import installation, server, server_arguments
from doctortool.line import FIX, NOTE, WELL, Line

LEAST_PYTHON = (3, 11)
CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")
LEAST_CAPABILITY = (8, 0)
_CHECKED = ("flashinfer-python", "torch")
_KERNELS = ("sglang-kernel", "sgl-kernel")  # the name changed between releases
_FLASHINFER_PARTS = ("flashinfer-cubin", "flashinfer-jit-cache")


@dataclass(frozen=True)
class Asked:
    """What is to be examined: `server` holds server arguments, if any, `card` a named card."""

    executable: str
    server: Sequence[str] = ()
    card: str | None = None


def examine(pin: Pin, asked: Asked) -> Iterator[Line]:
    """All findings, the interpreter's first.

    Raises `ValueError` with one sentence where the server arguments are not understood.
    """
    python = installation.interpreter(asked.executable)
    found = list(_python(pin, asked.executable, python))
    yield from found
    gpus = installation.gpus()
    yield from _cards(gpus, asked.card)
    torch = any(line.subject == "torch" and line.mark == FIX for line in found)
    yield from _cuda(python, installation.driver_cuda(), torch)
    applied = any(line.subject == "overlay" and line.mark == WELL for line in found)
    card = asked.card or next((gpu.capability for gpu in gpus if _is_card(gpu.capability)), None)
    cards = (card,) if card else server.CARDS
    executable = asked.executable if applied else None
    judged = server.judge(executable, asked.server, cards, pin.release) if asked.server else None
    policy = server_arguments.load("policy")
    strategy = _strategy(policy, judged, card, python)
    yield strategy
    if judged:
        yield from server.lines(judged, stock=strategy.found.startswith("stock"))


def _python(pin: Pin, executable: str, python: installation.Interpreter | None) -> Iterator[Line]:
    if python is None:
        found = f"{executable} does not run as a Python interpreter"
        yield Line(FIX, "python", found, "name another with --python")
    elif _numbers(python.python)[:2] < LEAST_PYTHON:
        found = f"{python.python}, {executable}, is too old"
        yield Line(FIX, "python", found, "name a Python of 3.11 or newer with --python")
    else:
        yield Line(WELL, "python", f"{python.python}, {executable}")
        yield from _sglang(pin, executable, python)


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
    yield from _packages(requirements.of_tree(found), python, found.version())


def _overlay(pin: Pin, executable: str, state: Survey, plugin: str | None) -> Line:
    where = f"--pin {pin.release} --python {executable}"
    if state.gutted:
        remedy = f"install sglang=={pin.release} again"
        if any(found.data is not None for found in state.found):
            remedy = f"run scripts/overlay unapply {where}, then {remedy}"
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
    required: Mapping[str, str], python: installation.Interpreter, release: str | None
) -> Iterator[Line]:
    installed = python.versions
    for name in (*_CHECKED, *(kernel for kernel in _KERNELS if kernel in required)):
        wanted, version = requirements.exact(required.get(name)), installed.get(name)
        if wanted is None:
            yield Line(NOTE, name, f"{version or 'not installed'}, and sglang pins no version")
        elif version and version.split("+")[0] == wanted:
            yield Line(WELL, name, f"{version}, as sglang {release} pins it")
        else:
            found = f"{version or 'not installed'}, and sglang {release} pins {wanted}"
            of_cpu = version and name == "torch" and python.torch_cuda is None
            remedy = f"install {name}=={wanted}{' built for CUDA' if of_cpu else ''}"
            yield Line(FIX, name, found, remedy)
    flashinfer = installed.get("flashinfer-python", "")
    for part in _FLASHINFER_PARTS:
        version = installed.get(part)
        if version and version.split("+")[0] != flashinfer.split("+")[0]:
            found = f"{version} next to flashinfer-python {flashinfer or 'none'}"
            yield Line(FIX, part, found, "install both in one version, or uninstall this one")


def _cards(gpus: list[installation.Gpu], named: str | None) -> Iterator[Line]:
    if named:
        yield _card(f"compute capability {named}, as named", named, "")
        return
    if not gpus:
        yield Line(NOTE, "gpu", "nvidia-smi shows none; run the doctor where the server runs")
    for gpu, count in Counter(gpus).items():
        found = f"{count} x {gpu.name}, compute capability {gpu.capability}, {gpu.memory}"
        yield _card(found, gpu.capability, f", driver {gpu.driver}")


def _card(found: str, capability: str, driver: str) -> Line:
    if not _is_card(capability):
        return Line(NOTE, "gpu", f"{found}: not judged, name its capability with --capability")
    if _numbers(capability) < LEAST_CAPABILITY:
        return Line(FIX, "gpu", found, "FlashInfer MLA needs compute capability 8.0 or newer")
    return Line(WELL, "gpu", found + driver)


def _is_card(capability: str) -> bool:
    return CAPABILITY.fullmatch(capability) is not None


def _cuda(
    python: installation.Interpreter | None, driver: str | None, torch_changes: bool
) -> Iterator[Line]:
    """A driver runs what was built for its own major CUDA release and for older ones."""
    if python is None or "torch" not in python.versions or torch_changes:
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
    judged: server.Judged | None,
    card: str | None,
    python: installation.Interpreter | None,
) -> Line:
    try:
        settings = policy.read_settings(os.environ)
    except ValueError as error:
        what, _, remedy = str(error).partition(": ")
        return Line(FIX, "strategy", what, remedy)
    if settings.strategy == "stock":
        return Line(NOTE, "strategy", f"stock, as {policy.STRATEGY_VARIABLE} asks")
    triton = python.versions.get("triton") if python else None
    plain = triton is not None and _numbers(triton)[:2] < policy.GLUON_TRITON
    one = judged.servers[0] if judged else server.Server()
    mark = WELL if card else NOTE
    return Line(mark, "strategy", _decode_strategy(policy, settings, one, card, plain))


def _decode_strategy(
    policy: Any, settings: Any, one: server.Server, card: str | None, plain: bool
) -> str:
    most = policy.capacity_rows(sys.maxsize, settings, gathers=True)
    rows = one.pool_tokens + one.page_size if one.pool_tokens else most
    means = policy.Means(rows, _numbers(card) if card else None, not plain)
    name, why = policy.strategy_of(means, settings, one.heads)
    stated = "" if one.pool_tokens else f" for a pool of at most {most:,} rows"
    return f"{name}{stated}: {why}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
