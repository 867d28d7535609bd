"""An upstream to compare a pin with: a release, read from its wheel, or a folder with a tree."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from overlaytool import fetch, index, requirements, tree
from overlaytool.errors import Exit, Refusal
from overlaytool.pin import Pin
from overlaytool.symbols import Read

FLASHINFER = "flashinfer-python"


@dataclass(frozen=True)
class Upstream:
    """A package's files, by their path from the folder that holds the package.

    `release` is None for a folder; `stated` is the version that a folder's tree states, if any.
    `digest` is a sha256 over the `.py` files, the same for a wheel and the tree that it unpacks to.
    `required` holds the versions that it pins.
    """

    name: str
    release: str | None
    stated: str | None
    digest: str
    read: Read
    paths: tuple[str, ...]
    required: Mapping[str, str]


def of_wheel(wheel: Path) -> Upstream:
    """The release in a wheel."""
    try:
        archive = zipfile.ZipFile(wheel)
    except (OSError, zipfile.BadZipFile) as error:
        raise Refusal(f"{wheel} is not a readable wheel: {error}", Exit.UNTRIED) from None
    known = frozenset(archive.namelist())
    information = next(name.rpartition("/")[0] for name in known if name.endswith("/METADATA"))
    record = archive.read(f"{information}/RECORD").decode()
    project, release = wheel.name.split("-")[:2]
    lines = [line.rpartition(",")[0] for line in record.splitlines()]
    return Upstream(
        f"{project} {release}",
        release,
        release,
        _digest(line for line in lines if line.rpartition(",")[0].endswith(".py")),
        lambda path: archive.read(path) if path in known else None,
        tuple(sorted(name for name in known if name.endswith(".py"))),
        requirements.from_metadata(archive.read(f"{information}/METADATA")),
    )


def of_folder(folder: Path) -> Upstream:
    """The tree in a folder: a checkout, an unpacked wheel, or site-packages."""
    found = tree.at(folder)
    files = {
        "sglang/" + file.relative_to(found.package).as_posix(): file
        for file in found.package.rglob("*.py")
    }
    return Upstream(
        f"the tree {folder.resolve().name}",
        None,
        found.version(),
        _digest(f"{path},{_record_hash(file.read_bytes())}" for path, file in files.items()),
        found.read,
        tuple(sorted(files)),
        _required(found.root),
    )


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.decode().rstrip('=')}"


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _required(root: Path) -> dict[str, str]:
    for file in sorted(root.glob("sglang-*.dist-info/METADATA")):
        return requirements.from_metadata(file.read_bytes())
    project = root / "pyproject.toml"
    return requirements.from_pyproject(project.read_bytes()) if project.is_file() else {}


def of_pin(pin: Pin) -> Upstream:
    """The pin's own release, from the wheel of its lock."""
    lock = pin.lock()
    return of_wheel(fetch.wheel(pin, lock.version, lock.wheels))


def target(pin: Pin, to: str | None) -> Upstream:
    """What `--to` names: a folder, a release, or (without it) the newest release that pip finds."""
    if to and Path(to).is_dir():
        return of_folder(Path(to))
    if to and not to[0].isdigit():
        raise Refusal(f"--to {to} is neither a folder nor a release", Exit.USAGE)
    release = to or index.newest(tree.PACKAGE)
    if release == pin.release:
        return of_pin(pin)
    return of_wheel(index.wheel(tree.PACKAGE, release, pin.wheels))


def flashinfer(pin: Pin, own: Upstream, other: Upstream) -> Upstream:
    """The FlashInfer that `other` pins; the pin's where it states none, as a raw folder does."""
    stated = (source.required.get(FLASHINFER) for source in (other, own))
    version = next(filter(None, map(requirements.exact, stated)), None)
    if version is None:
        raise Refusal(f"neither {own.name} nor {other.name} pins {FLASHINFER}", Exit.UNTRIED)
    return of_wheel(index.wheel(FLASHINFER, version, pin.wheels))


def with_flashinfer(sglang: Upstream, wheel: Upstream) -> Read:
    """Reads `flashinfer/` from its own wheel and everything else from sglang."""
    return lambda path: (wheel if path.startswith("flashinfer/") else sglang).read(path)
