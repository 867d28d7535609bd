"""Making a pin's lock and contract from the wheel, the patches and the overlay."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from overlaytool import fetch
from overlaytool.contract import digest_of
from overlaytool.errors import Refusal
from overlaytool.lock import (
    ABSENT,
    FORMAT,
    SHORT,
    Earlier,
    Entry,
    Lock,
    digest,
    load,
    load_earlier,
)
from overlaytool.patch import Mismatch, Patch, backward, forward
from overlaytool.pin import Pin

from carrytool import releases, upstream
from carrytool.git import git
from carrytool.needs import Needs
from carrytool.upstream import Upstream

_NO_BLOB = 40 * "0"


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


def texts(pin: Pin) -> dict[Path, str]:
    """The files of the pin that are made, as they should be; raises `Refusal` as `make` does."""
    lock = make(pin)
    own = upstream.of_wheel(fetch.wheel(pin, lock.version, lock.wheels))
    return {pin.lock_file: dump(lock), pin.folder / "contract.toml": dump_contract(pin, own)}


def dump_contract(pin: Pin, own: Upstream) -> str:
    """TOML text of what the pin depends on in sglang; FlashInfer is no part of the tree."""
    needs = Needs(pin, own)
    lines = [f"# What the pin depends on in sglang {pin.release}. Written by `make lock`."]
    last = ""
    for name in needs.uses:
        file, _, symbol = name.partition(":")
        if file.startswith("sglang/"):
            lines += ["", f"[{_quote(file)}]"] if file != last else []
            last = file
            ours = needs.uses[name][0].line.partition(":")[0]
            row = f"{_quote(digest_of(needs.tree, name))}, {_quote(ours)}"
            lines.append(f"{_quote(symbol)} = [{row}]")
    return "\n".join([*lines, ""])


def write(pin: Pin) -> bool:
    """Write lock, contract and what earlier locks held; whether that changed any."""
    changed = [_replace(file, text) for file, text in texts(pin).items()]
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
    """(path, applied) of every row of every lock in the history, with what is pristine there."""
    if not (repository / ".git").exists():
        return {}
    log = ("log", "--raw", "-m", "--no-abbrev", "--format=", "--", "patches/*/lock.toml")
    blobs = {line.split()[3] for line in _history(repository, *log).splitlines()}
    found: dict[tuple[str, str], str] = {}
    for blob in sorted(blobs - {_NO_BLOB}):
        for row in tomllib.loads(_history(repository, "cat-file", "blob", blob)).get("path", []):
            if row["applied"] != row["pristine"]:
                found[row["path"], row["applied"][:SHORT]] = row["pristine"]
    return found


def _history(repository: Path, *arguments: str) -> str:
    done = git(repository, *arguments, alone=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise Refusal(f"git cannot read the history of {repository}: {said}")
    return done.stdout.decode()


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
        raise Refusal(f"{', '.join(names)} on the pinned wheel: {error}") from None
    if back != pristine:
        message = f"{', '.join(names)}: reversed, {path} is not as in the wheel"
        raise Refusal(message)
    return Entry(path, digest(pristine), digest(applied), names)


def _overlaid(pin: Pin, source: Path) -> list[Entry]:
    overlay = pin.overlay()
    for path in sorted(fetch.members(source) & overlay.keys()):
        message = f"overlay/{path} shadows an upstream file: change that by a patch"
        raise Refusal(message)
    return [Entry(path, ABSENT, digest(overlay[path].read_bytes())) for path in overlay]


def dump(lock: Lock) -> str:
    """TOML text of a lock; equal locks give equal bytes."""
    head = [
        "# Written by `make lock`, never by hand.",
        f"lock = {FORMAT}",
        "",
        "[upstream]",
        'name = "sglang"',
        f"version = {_quote(lock.version)}",
    ]
    tables = [*_table("wheels", lock.wheels), *_table("patches", lock.patches)]
    rows = [line for entry in sorted(lock.entries, key=lambda e: e.path) for line in _row(entry)]
    return "\n".join([*head, *tables, *rows, ""])


def _quote(text: str) -> str:
    return json.dumps(text)


def _table(name: str, table: Mapping[str, str]) -> list[str]:
    return ["", f"[{name}]", *(f"{_quote(key)} = {_quote(table[key])}" for key in sorted(table))]


def _row(entry: Entry) -> list[str]:
    lines = ["", "[[path]]"]
    lines += [
        f"{name} = {_quote(getattr(entry, name))}" for name in ("path", "pristine", "applied")
    ]
    if entry.patches:
        lines.append(f"patches = [{', '.join(map(_quote, entry.patches))}]")
    return lines


def dump_earlier(earlier: Earlier) -> str:
    """Text of `patches/earlier`; equal contents give equal bytes."""
    rows = [(path, *row) for path, rows in earlier.items() for row in rows.items()]
    return "".join(f"{applied} {pristine} {path}\n" for path, applied, pristine in sorted(rows))
