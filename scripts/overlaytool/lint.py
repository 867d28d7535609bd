"""What every patch of a pin keeps to, told from the files alone."""

import re
from collections.abc import Callable, Iterator, Sequence

from overlaytool.diff import Hunk, Patch
from overlaytool.errors import Refusal
from overlaytool.parse import parse_patch
from overlaytool.pin import Pin

REQUIRED = ("Description", "Why-not-a-plugin", "Upstream-Status", "Drop-when", "Last-Rebased")
OPTIONAL = ("Author", "Builds-on")
CONTEXT = 3
_STATUS = re.compile(
    r"(Pending|Submitted|Backport|Denied|Inactive-Upstream|Inappropriate)\b.*\[.+\]", re.DOTALL
)


def lint(pin: Pin) -> list[str]:
    """Every fault found, one sentence each; an empty list where there is none."""
    names = pin.series()
    stray = {file.name for file in pin.folder.glob("*.patch")} - set(names)
    faults = [f"{name}: not in the series: list it, or remove the file" for name in sorted(stray)]
    patches: list[Patch] = []
    for name in names:
        try:
            data = pin.patch_bytes(name)
            patches.append(parse_patch(name, data))
        except Refusal as error:
            faults.append(str(error))
            continue
        if b"\r" in data:
            faults.append(f"{name}:{data[: data.index(13)].count(10) + 1}: CR: patches are LF only")
    for patch in patches:
        faults += [f"{patch.name}: {fault}" for rule in RULES for fault in rule(patch, pin.release)]
    return faults + list(_shared(patches))


def _header(patch: Patch, release: str) -> Iterator[str]:
    for field in REQUIRED:
        if not patch.header.get(field):
            yield f"the header lacks {field}: state it above the line ---"
    for field in patch.header.keys() - {*REQUIRED, *OPTIONAL}:
        yield f"unknown header field {field}: known are {', '.join((*REQUIRED, *OPTIONAL))}"
    status = patch.header.get("Upstream-Status", "")
    if status and not _STATUS.fullmatch(status):
        yield f"Upstream-Status {status!r} is not a known word with its [reason]"
    rebased = patch.header.get("Last-Rebased", "")
    if rebased and rebased != f"sglang {release}":
        yield f"Last-Rebased is {rebased!r}, the pin is sglang {release}"


def _context(patch: Patch, release: str) -> Iterator[str]:
    for file in patch.files:
        for hunk in file.hunks if file.kind == "modify" else ():
            if _leading(hunk) < CONTEXT and hunk.old_start > 1:
                yield f"line {hunk.line}: fewer than {CONTEXT} lines of context before the change"


def _leading(hunk: Hunk) -> int:
    return next(n for n, (sign, _) in enumerate(hunk.body) if sign != " ")


def _whitespace(patch: Patch, release: str) -> Iterator[str]:
    for file in patch.files:
        for hunk in file.hunks:
            for offset, (sign, text) in enumerate(hunk.body, 1):
                line = text.removesuffix(b"\n")
                if sign == "+" and line != line.rstrip():
                    yield f"line {hunk.line + offset}: added line ends in white space"


RULES: tuple[Callable[[Patch, str], Iterator[str]], ...] = (_header, _context, _whitespace)


def _shared(patches: Sequence[Patch]) -> Iterator[str]:
    last: dict[str, str] = {}
    for patch in patches:
        declared = patch.header.get("Builds-on", "").split()
        for file in patch.files:
            if (before := last.get(file.path)) and before not in declared:
                yield f"{patch.name}: {file.path} is changed by {before} too: say Builds-on"
            last[file.path] = patch.name
