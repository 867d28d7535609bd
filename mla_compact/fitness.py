"""Whether the plugin fits the sglang that it is loaded into; every answer is one sentence."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from . import HOME, UnfitError

# At the end: in a server, nothing of ours may hide a module of another package.
sys.path.append(str(HOME / "scripts"))

from overlaytool import contract, requirements, state
from overlaytool.errors import Refusal
from overlaytool.lock import Lock, digest
from overlaytool.pin import Pin, find, known
from overlaytool.tree import Tree

_WHOLE = (state.PRISTINE, state.APPLIED)
DISTRIBUTION = "flashinfer-mla-compact"
SKIP_VARIABLE = "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK"  # sglang's own, heeded as in a patched tree


def require() -> None:
    """Raises UnfitError unless this package and the sglang of this process fit each other."""
    package = Path(importlib.import_module("sglang").__path__[0])
    where = Tree(package.parent.absolute(), package.resolve())
    try:
        pin = _pin_of(where)
        lock = pin.lock()
        _require_whole(pin, lock)
        _require_one_revision(where, lock)
        contract.require(pin, where.read)
    except Refusal as refusal:
        raise UnfitError(str(refusal)) from None
    _require_flashinfer(where)


def _pin_of(where: Tree) -> Pin:
    """The pin that the tree states; of a checkout between releases, the one with its files."""
    pins = [find(HOME, release) for release in known(HOME)]
    stated = (where.version() or "of no release").split("+")[0]
    fitting = [pin for pin in pins if pin.release == stated] or [
        pin for pin in pins if state.survey(where, pin.lock()).state in _WHOLE
    ]
    if not fitting:
        listed = ", ".join(pin.release for pin in pins)
        raise UnfitError(
            f"sglang {stated} at {where.package} has no pin: install one of {listed}, or leave the "
            "attention backend to sglang"
        )
    return fitting[0]


def _require_whole(pin: Pin, lock: Lock) -> None:
    """The wheel's own copy of the backend is the one that its lock names."""
    wanted = {entry.path: entry.applied for entry in lock.entries if not entry.patches}
    held = {path: digest(file.read_bytes()) for path, file in pin.overlay().items()}
    odd = sorted({path for path, _ in wanted.items() ^ held.items()})
    if odd:
        raise UnfitError(f"{odd[0]} in {HOME} is changed or missing: install {DISTRIBUTION} again")


def _require_one_revision(where: Tree, lock: Lock) -> None:
    """A tree that is patched must be so by this very revision, and whole."""
    seen = state.survey(where, lock)
    ours = [found for found in seen.found if not found.entry.patches and found.data is not None]
    mixed = seen.state in (state.EARLIER, state.PARTIAL) or ours
    if seen.state == state.APPLIED or not mixed:
        return
    raise UnfitError(
        f"{where.package} is patched by another revision than this {DISTRIBUTION}, or in part: run "
        f"`mla-compact apply --python {sys.executable}`, or unapply with what patched it"
    )


def _require_flashinfer(where: Tree) -> None:
    """As sglang checks it for its own `flashinfer`: the pinned version, or a later one."""
    pinned = requirements.exact(requirements.of_tree(where).get("flashinfer-python"))
    common: Any = importlib.import_module("sglang.srt.utils.common")
    if pinned and not common.get_bool_env_var(SKIP_VARIABLE):
        remedy = f"Install flashinfer-python=={pinned}"
        try:
            common.assert_pkg_version("flashinfer_python", pinned, remedy)
        except Exception as error:
            raise UnfitError(str(error)) from None
