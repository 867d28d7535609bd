"""The drift report in Markdown: the same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from overlaytool.errors import EXIT_HELP, Exit

from carrytool.carry import FAILS, CarriedFile, Verdict
from carrytool.compare import Change, Judged
from carrytool.drift import Drift


def write(drift: Drift, folder: Path) -> str:
    """Writes report.md and the files to look at into `folder`; returns report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(drift)
    (folder / "report.md").write_text(text, "utf-8")
    for patch in drift.carried:
        for file in (file for file in patch.files if file.review is not None):
            place = folder / _review(patch.name, file)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.review or b"")
    return text


def _review(patch: str, file: CarriedFile) -> str:
    """Where the text to look at lies, below the report's folder."""
    return f"review/{patch}/{file.path}.{'rej' if file.verdict in FAILS else 'merged'}"


def markdown(drift: Drift) -> str:
    """The report."""
    details = [
        _detail(patch.name, file)
        for patch in drift.carried
        for file in patch.files
        if file.verdict is not Verdict.CLEAN
    ]
    parts = [
        f"# {_sentence(drift)}",
        f"Exit {int(drift.exit)}. Next: {_next(drift)}.",
        "## Patches",
        _rows(["patch", "verdict", "drop it when"], _patches(drift)),
        *(["\n".join(details)] if details else []),
        *_changes(drift),
        "## Versions that upstream pins",
        _rows(["package", "pin", "target"], _versions(drift)),
        f"Made from sglang {drift.pin.release}, {drift.target.name} and {drift.flashinfer.name}.",
    ]
    return "\n\n".join(parts) + "\n"


def _sentence(drift: Drift) -> str:
    pair = f"sglang {drift.pin.release} -> {drift.target.name}"
    if drift.exit is not Exit.OK:
        return f"{pair}: {EXIT_HELP[drift.exit]}"
    same = drift.target.release == drift.pin.release
    return f"{pair}: {'up to date' if same else 'clean; the pin can be carried as it is'}"


def _next(drift: Drift) -> str:
    """What to do about it."""
    release = drift.target.release
    if release in (None, drift.pin.release):
        return "nothing to carry: the target is no other release"
    if drift.exit is Exit.UNTRIED:
        return "fix what kept it from being tried, and run it again"
    steps = [f"settle {', '.join(drift.open)} as docs/maintaining.md says"] if drift.open else []
    if any(change.verdict is Judged.BROKEN for change in drift.changes):
        steps.append("make the overlay fit what is broken")
    if drift.changes and not drift.decisions.read:
        steps.append("read what is to be read, and say so with --read")
    return "; then ".join(
        [*steps, f"scripts/carry rebase --pin {drift.pin.release} --to {release}"]
    )


def _patches(drift: Drift) -> Iterator[list[str]]:
    for patch, carried in zip(drift.patches, drift.carried, strict=True):
        yield [f"`{patch.name}`", carried.verdict, patch.header.get("Drop-when", "")]


def _detail(patch: str, file: CarriedFile) -> str:
    text = f"- `{patch}`: `{file.path}` {file.verdict}"
    text += f": {file.note}" if file.note else ""
    return text if file.review is None else f"{text}; see `{_review(patch, file)}`"


def _changes(drift: Drift) -> Iterator[str]:
    """The changes by verdict, the worst first."""
    yield f"## What the overlay depends on\n\n{drift.names} names, {len(drift.changes)} changed."
    for verdict in (Judged.UNREAD, Judged.BROKEN, Judged.READ):
        rows = [change for change in drift.changes if change.verdict is verdict]
        lines = sum(len(change.diff) for change in rows)
        if rows:
            yield f"## {verdict.capitalize()}\n\n{len(rows)} names, {lines} lines."
            yield from map(_change, rows)


def _change(change: Change) -> str:
    file, _, symbol = change.name.partition(":")
    parts = [f"### {symbol or file}" + (f" ({file})" if symbol else "")]
    parts += ["\n".join(f"- {fault}" for fault in change.faults)] if change.faults else []
    parts += ["Needed by:\n" + "\n".join(f"- `{line}`" for line in change.lines)]
    parts += ["```diff\n" + "\n".join(change.diff) + "\n```"] if change.diff else []
    return "\n\n".join(parts)


def _versions(drift: Drift) -> Iterator[list[str]]:
    own, other = drift.own.required, drift.target.required
    for name in sorted({*own, *other}) if other else ():
        old, new = own.get(name, "absent"), other.get(name, "absent")
        if old != new:
            yield [name, old, new]


def _rows(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [" | ".join(_cell(cell) for cell in row) for row in rows]
    ruled = [" | ".join(head), " | ".join("---" for _ in head), *lines]
    return "\n".join(f"| {line} |" for line in ruled) if lines else "None."


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
