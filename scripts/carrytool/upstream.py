"""An upstream to compare a pin with: a release, read from its wheel, or a folder with a tree."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from overlaytool import fetch, requirements, tree
from overlaytool.contract.symbols import Read
from overlaytool.errors import Exit, Refusal
from overlaytool.pin import Pin

from carrytool import releases

FLASHINFER = "flashinfer-python"


@dataclass(frozen=True)
class Upstream:
    """A package's files, by their path from the folder that holds the package.

    `release` is None for a folder. `required` holds the versions that it pins, `files` its modules.
    """

    name: str
    release: str | None
    read: Read
    required: Mapping[str, str]
    files: Sequence[str] = ()


def of_wheel(wheel: Path) -> Upstream:
    """The release in a wheel."""
    try:
        archive = zipfile.ZipFile(wheel)
    except (OSError, zipfile.BadZipFile) as error:
        raise Refusal(f"{wheel} is not a readable wheel: {error}", Exit.UNTRIED) from None
    known = frozenset(archive.namelist())
    metadata = next(name for name in known if name.endswith(".dist-info/METADATA"))
    project, release = wheel.name.split("-")[:2]
    return Upstream(
        f"{project} {release}",
        release,
        lambda path: archive.read(path) if path in known else None,
        requirements.from_metadata(archive.read(metadata)),
        sorted(name for name in known if name.endswith(".py")),
    )


def of_folder(folder: Path) -> Upstream:
    """The tree in a folder: a checkout, an unpacked wheel, or site-packages."""
    found = tree.at(folder)
    name = f"the tree {folder.resolve().name}"
    files = sorted(
        f"{tree.PACKAGE}/{p.relative_to(found.package)}" for p in found.package.rglob("*.py")
    )
    return Upstream(name, None, found.read, requirements.of_tree(found), files)


def of_pin(pin: Pin) -> Upstream:
    """The pin's own release, from the wheel of its lock."""
    lock = pin.lock()
    return of_wheel(fetch.wheel(pin, lock.version, lock.wheels))


def target(pin: Pin, to: str | None) -> Upstream:
    """What was named: a folder, or a release; for None, the newest release that pip finds."""
    if to and Path(to).is_dir():
        return of_folder(Path(to))
    if to and not to[0].isdigit():
        raise Refusal(f"{to} is neither a folder nor a release", Exit.USAGE)
    release = to or releases.newest(tree.PACKAGE)
    if release == pin.release:
        return of_pin(pin)
    return of_wheel(releases.wheel(tree.PACKAGE, release, pin.wheels))


def flashinfer(pin: Pin, own: Upstream, other: Upstream) -> Upstream:
    """The FlashInfer that `other` pins; the pin's where it states none, as a raw folder does."""
    stated = (source.required.get(FLASHINFER) for source in (other, own))
    version = next(filter(None, map(requirements.exact, stated)), None)
    if version is None:
        raise Refusal(f"neither {own.name} nor {other.name} pins {FLASHINFER}", Exit.UNTRIED)
    return of_wheel(releases.wheel(FLASHINFER, version, pin.wheels))


def with_flashinfer(sglang: Upstream, wheel: Upstream) -> Upstream:
    """The same, which reads `flashinfer/` from its own wheel."""
    read = lambda path: (wheel if path.startswith("flashinfer/") else sglang).read(path)  # noqa: E731
    return replace(sglang, read=read)
