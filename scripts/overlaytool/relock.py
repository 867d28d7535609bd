"""Making a pin's lock from the pinned wheel, the patches and the overlay."""

from collections.abc import Sequence
from pathlib import Path

from overlaytool import fetch
from overlaytool.diff import Mismatch, Patch
from overlaytool.errors import Exit, Refusal
from overlaytool.lock import ABSENT, SHORT, Entry, Lock, digest, dump, load
from overlaytool.pin import Pin, backward, forward


def make(pin: Pin) -> Lock:
    """The lock as it should be; the old one gives the wheels' hashes and earlier revisions.

    Raises `Refusal` where a patch does not fit the wheel, its reverse does not give the wheel's
    bytes back, or an overlay file has the path of an upstream one.
    """
    old = load(pin.lock_file) if pin.lock_file.exists() else None
    known = old.wheels if old and old.version == pin.release else None
    wheels = known or fetch.wheel_hashes(pin.release)
    source = fetch.wheel(pin, pin.release, wheels)
    entries = [*_patched(pin.patches(), source), *_overlaid(pin, source)]
    previous = {entry.path: entry for entry in old.entries} if old else {}
    kept = [_with_earlier(entry, previous.pop(entry.path, None)) for entry in entries]
    kept += [_retired(entry, source) for entry in previous.values()]
    patches = {name: digest(pin.patch_bytes(name)) for name in pin.series()}
    return Lock(pin.release, wheels, patches, tuple(kept))


def write(pin: Pin) -> bool:
    """Write the lock; whether that changed it."""
    text = dump(make(pin))
    if pin.lock_file.exists() and pin.lock_file.read_text() == text:
        return False
    staged = pin.lock_file.with_suffix(".new")
    staged.write_text(text)
    staged.replace(pin.lock_file)
    return True


def _patched(patches: Sequence[Patch], source: Path) -> list[Entry]:
    names: dict[str, list[str]] = {}
    for patch in patches:
        for file in patch.files:
            names.setdefault(file.path, []).append(patch.name)
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
    return Entry(path, digest(pristine), digest(applied), patches=names)


def _overlaid(pin: Pin, source: Path) -> list[Entry]:
    upstream = fetch.members(source)
    added = {f.path for p in pin.patches() for f in p.files}
    for path in pin.overlay():
        if path in upstream or path in added:
            message = f"overlay/{path} shadows an upstream or patched file: change that by a patch"
            raise Refusal(message, Exit.FAILED)
    overlay = pin.overlay()
    return [Entry(path, ABSENT, digest(overlay[path].read_bytes())) for path in overlay]


def _with_earlier(entry: Entry, old: Entry | None) -> Entry:
    if old is None:
        return entry
    former = () if old.applied in (old.pristine, entry.applied) else (old.applied[:SHORT],)
    now = entry.applied[:SHORT]
    earlier = tuple(d for d in dict.fromkeys((*old.earlier, *former)) if d != now)
    return Entry(entry.path, entry.pristine, entry.applied, earlier, entry.patches)


def _retired(old: Entry, source: Path) -> Entry:
    pristine = digest(fetch.member(source, old.path))
    return _with_earlier(Entry(old.path, pristine, pristine), old)
