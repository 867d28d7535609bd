"""Making a pin's lock from the pinned wheel, the patches and the overlay, and `patches/earlier`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from overlaytool import fetch
from overlaytool.errors import Exit, Refusal
from overlaytool.lock import (
    ABSENT,
    SHORT,
    Entry,
    Lock,
    digest,
    dump,
    dump_earlier,
    load,
    load_earlier,
)
from overlaytool.patch import Mismatch, Patch, backward, forward
from overlaytool.pin import Pin

from carrytool import releases
from carrytool.git import git

_ROW = re.compile(r'[ +](path|pristine|applied) = "(.*)"')


def make(pin: Pin) -> Lock:
    """The lock as it should be; the old one gives the wheels' hashes.

    Raises `Refusal` where a patch does not fit the wheel, its reverse does not give the wheel's
    bytes back, or an overlay file has the path of an upstream one.
    """
    known: Mapping[str, str] = {}
    if pin.lock_file.exists():
        known = load(pin.lock_file, pin.earlier_file).wheels
    wheels = known or releases.wheel_hashes(pin.release)
    source = fetch.wheel(pin, pin.release, wheels)
    entries = [*_patched(pin.patches(), source), *_overlaid(pin, source)]
    patches = {name: digest(pin.patch_bytes(name)) for name in pin.series()}
    return Lock(pin.release, wheels, patches, tuple(entries))


def write(pin: Pin) -> bool:
    """Write the lock and what earlier ones held; whether that changed either."""
    changed = [_replace(pin.lock_file, dump(make(pin)))]
    earlier = load_earlier(pin.earlier_file)
    for (path, applied), pristine in committed(pin.repository).items():
        earlier.setdefault(path, {})[applied] = pristine
    for file in pin.repository.glob("patches/*/lock.toml"):
        for entry in load(file, pin.earlier_file).entries:
            earlier.get(entry.path, {}).pop(entry.applied[:SHORT], None)
    changed.append(_replace(pin.earlier_file, dump_earlier(earlier)))
    return any(changed)


def _replace(file: Path, text: str) -> bool:
    if file.exists() and file.read_text() == text:
        return False
    staged = file.with_name(f"{file.name}.new")
    staged.write_text(text)
    staged.replace(file)
    return True


def committed(repository: Path) -> dict[tuple[str, str], str]:
    """(path, applied) of every row of every lock in the history, with what is pristine there.

    A row's three lines follow each other, so that three lines of context show all of them.
    """
    if not (repository / ".git").exists():
        return {}
    log = ("log", "-p", "-m", "-U3", "--format=", "--", "patches/*/lock.toml")
    done = git(repository, *log, alone=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise Refusal(f"git cannot read the history of {repository}: {said}", Exit.FAILED)
    found: dict[tuple[str, str], str] = {}
    row: dict[str, str] = {}
    for line in done.stdout.decode().splitlines():
        if match := _ROW.fullmatch(line):
            row[match[1]] = match[2]
            if match[1] == "applied" and row["applied"] != row["pristine"]:
                found[row["path"], row["applied"][:SHORT]] = row["pristine"]
    return found


def _patched(patches: Sequence[Patch], source: Path) -> list[Entry]:
    names: dict[str, list[str]] = {}
    for patch in patches:
        for path in patch.files:
            names.setdefault(path, []).append(patch.name)
    return [_round_trip(patches, path, tuple(by), source) for path, by in names.items()]


def _round_trip(patches: Sequence[Patch], path: str, names: tuple[str, ...], source: Path) -> Entry:
    pristine = fetch.member(source, path)
    try:
        applied = forward(patches, path, pristine)
        back = backward(patches, path, applied)
    except Mismatch as error:
        raise Refusal(f"{', '.join(names)} on the pinned wheel: {error}", Exit.FAILED) from None
    if back != pristine:
        message = f"{', '.join(names)}: reversed, {path} is not as in the wheel"
        raise Refusal(message, Exit.FAILED)
    return Entry(path, digest(pristine), digest(applied), names)


def _overlaid(pin: Pin, source: Path) -> list[Entry]:
    overlay = pin.overlay()
    for path in sorted(fetch.members(source) & overlay.keys()):
        message = f"overlay/{path} shadows an upstream file: change that by a patch"
        raise Refusal(message, Exit.FAILED)
    return [Entry(path, ABSENT, digest(overlay[path].read_bytes())) for path in overlay]
