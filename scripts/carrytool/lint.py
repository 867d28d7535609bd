"""What every patch of a pin keeps to, as its file alone shows it."""

import re
from collections.abc import Iterator

from overlaytool.errors import Refusal
from overlaytool.patch import Patch, parse_patch
from overlaytool.pin import Pin

from carrytool.git import git

REQUIRED = ("Description", "Why-not-a-plugin", "Upstream-Status", "Drop-when", "Last-Rebased")
OPTIONAL = ("Author", "Builds-on")
CONTEXT = 3
_STATUS = re.compile(
    r"(Pending|Submitted|Backport|Denied|Inactive-Upstream|Inappropriate)\b.*\[.+\]", re.DOTALL
)
_WHITESPACE = re.compile(rb"^\+.*[ \t\r]$|\r", re.MULTILINE)


def lint(pin: Pin) -> list[str]:
    """Every fault found, one sentence each; an empty list where there is none."""
    names = pin.series()
    stray = {file.name for file in pin.folder.glob("*.patch")} - set(names)
    faults = [f"{name}: not in the series: list it, or remove the file" for name in sorted(stray)]
    last: dict[str, str] = {}
    for name in names:
        try:
            data = pin.patch_bytes(name)
            patch = parse_patch(name, data)
        except Refusal as error:
            faults.append(str(error))
            continue
        rules = (
            _bytes(pin, name, data),
            _header(patch, pin),
            _context(patch),
            _shared(patch, last),
        )
        faults += [f"{name}: {fault}" for rule in rules for fault in rule]
    return faults


def _bytes(pin: Pin, name: str, data: bytes) -> Iterator[str]:
    done = git(pin.folder, "apply", "--numstat", name)
    if done.returncode:
        yield f"git apply refuses it: {done.stderr.decode(errors='replace').strip()}"
    for match in _WHITESPACE.finditer(data):
        line = data.count(b"\n", 0, match.start()) + 1
        yield f"line {line}: white space at the end of an added line, or CR"


def _header(patch: Patch, pin: Pin) -> Iterator[str]:
    for field in REQUIRED:
        if not patch.header.get(field):
            yield f"the header lacks {field}: state it above the line ---"
    for field in patch.header.keys() - {*REQUIRED, *OPTIONAL}:
        yield f"unknown header field {field}: known are {', '.join((*REQUIRED, *OPTIONAL))}"
    status = patch.header.get("Upstream-Status", "")
    if status and not _STATUS.fullmatch(status):
        yield f"Upstream-Status {status!r} is not a known word with its [reason]"
    rebased = patch.header.get("Last-Rebased", "")
    if rebased and rebased != f"sglang {pin.release}":
        yield f"Last-Rebased is {rebased!r}, the pin is sglang {pin.release}"


def _context(patch: Patch) -> Iterator[str]:
    for hunk in (hunk for hunks in patch.files.values() for hunk in hunks):
        if hunk.leading < min(CONTEXT, hunk.starts[0]):
            yield f"line {hunk.line}: fewer than {CONTEXT} lines of context before the change"


def _shared(patch: Patch, last: dict[str, str]) -> Iterator[str]:
    for path in patch.files:
        if path in last and last[path] not in patch.header.get("Builds-on", "").split():
            yield f"{path} is changed by {last[path]} too: say Builds-on"
        last[path] = patch.name
