"""The drift report: the same input gives the same bytes, as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from overlaytool.carry import FAILS, LANDS, Verdict
from overlaytool.drift import Drift, reviews
from overlaytool.errors import EXIT_HELP, Exit

SCHEMA = 1


def write(drift: Drift, folder: Path) -> None:
    """Writes report.json, report.md and the files to look at into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    table = as_table(drift)
    (folder / "report.json").write_text(json.dumps(table, indent=2) + "\n", "utf-8")
    (folder / "report.md").write_text(as_markdown(table), "utf-8")
    for patch, file in reviews(drift):
        place = folder / review_name(patch, file.path, file.verdict)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.review or b"")


def review_name(patch: str, path: str, verdict: Verdict) -> str:
    """Where the text to look at lies, below the report's folder."""
    return f"review/{patch}/{path}.{'diff3' if verdict is Verdict.CONFLICT else 'merged'}"


def as_table(drift: Drift) -> dict[str, Any]:
    """The report as JSON holds it."""
    return {
        "schema": SCHEMA,
        "verdict": sentence(drift),
        "exit": int(drift.exit),
        "pin": {
            "release": drift.pin.release,
            "digest": drift.own.digest,
            "series": drift.series,
        },
        "target": {
            "name": drift.target.name,
            "states": drift.target.stated,
            "digest": drift.target.digest,
        },
        "flashinfer": {"name": drift.flashinfer.name, "digest": drift.flashinfer.digest},
        "patches": list(_patches(drift)),
        "contract": {
            "held": sum(finding.verdict == "held" for finding in drift.findings),
            "broken": [vars(row) for row in drift.findings if row.verdict != "held"],
        },
        "versions": list(_versions(drift.own.required, drift.target.required)),
        "cures": [vars(cure) for cure in drift.cures],
        "next": next_step(drift),
    }


def sentence(drift: Drift) -> str:
    """The verdict in one sentence."""
    pair = f"sglang {drift.pin.release} -> {drift.target.name}"
    if drift.exit is Exit.OK:
        same = drift.target.digest == drift.own.digest
        return f"{pair}: {'up to date' if same else 'clean; the pin can be carried as it is'}"
    return f"{pair}: {EXIT_HELP[drift.exit]}"


def _patches(drift: Drift) -> Iterable[dict[str, Any]]:
    for patch, carried in zip(drift.patches, drift.carried, strict=True):
        yield {
            "name": patch.name,
            "verdict": str(carried.verdict),
            "drop_when": patch.header.get("Drop-when", "").replace("\n", " "),
            "files": [
                {
                    "path": file.path,
                    "verdict": str(file.verdict),
                    "note": file.note,
                    "function": file.function,
                    "review": ""
                    if file.review is None
                    else review_name(patch.name, file.path, file.verdict),
                    "candidates": list(drift.candidates.get(file.path, ())),
                }
                for file in carried.files
            ],
        }


def _versions(own: Mapping[str, str], other: Mapping[str, str]) -> Iterable[dict[str, str]]:
    for name in sorted({*own, *other}):
        old, new = own.get(name, "absent"), other.get(name, "absent")
        if other and old != new:
            yield {"name": name, "pin": old, "target": new}


def next_step(drift: Drift) -> str:
    """What to do about it."""
    release = drift.target.release
    if release is None:
        return "nothing to land: the target is a folder, not a release"
    command = f"scripts/overlay rebase --pin {drift.pin.release} --to {release}"
    open_rows = [patch.name for patch in drift.carried if patch.verdict not in LANDS]
    if drift.exit is Exit.OK and drift.target.digest == drift.own.digest:
        return "nothing"
    if drift.exit is Exit.UNTRIED:
        return "mend what kept it from being tried, and run it again"
    if not open_rows and drift.exit is not Exit.CONTRACT:
        return command
    steps = []
    if open_rows:
        steps.append(f"settle {', '.join(open_rows)} as docs/maintaining.md tells")
    if drift.exit is Exit.CONTRACT:
        steps.append("make the overlay fit each broken row of the contract, and state the new one")
    return "; ".join([*steps, f"then {command}"])


def as_markdown(table: Mapping[str, Any]) -> str:
    """The report for people, made from its JSON."""
    pin, target = table["pin"], table["target"]
    parts = [
        f"# {table['verdict']}",
        f"Exit {table['exit']}. Next: {table['next']}.",
        *_patch_section(table["patches"]),
        *_contract_section(table["contract"]),
        *_version_section(table["versions"]),
        *_cure_section(table["cures"]),
        "## Made from",
        f"- pin: sglang {pin['release']}, sources sha256 {pin['digest']}\n"
        f"- series: sha256 {pin['series']}\n"
        f"- target: {target['name']}, states {target['states'] or 'no version'}, "
        f"sources sha256 {target['digest']}\n"
        f"- {table['flashinfer']['name']}, sources sha256 {table['flashinfer']['digest']}",
    ]
    return "\n\n".join(parts) + "\n"


def _patch_section(patches: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    rows, details = [], []
    for patch in patches:
        rows.append([f"`{patch['name']}`", patch["verdict"], patch["drop_when"]])
        for file in patch["files"]:
            if file["verdict"] != Verdict.CLEAN:
                details.append(_detail(patch["name"], file))
    yield "## Patches"
    yield _rows(["patch", "verdict", "drop it when"], rows)
    if details:
        yield "\n".join(details)


def _detail(patch: str, file: Mapping[str, Any]) -> str:
    where = f" in `{file['function']}`" if file["function"] else ""
    text = f"- `{patch}`: `{file['path']}` {file['verdict']}{where}"
    text += f": {file['note']}" if file["note"] else ""
    text += f"; see `{file['review']}`" if file["review"] else ""
    if file["candidates"]:
        text += f"; its lines stand in {', '.join(f'`{name}`' for name in file['candidates'])}"
    elif file["verdict"] in FAILS:
        text += "; no other file holds its lines"
    return text


def _contract_section(contract: Mapping[str, Any]) -> Iterable[str]:
    yield "## Contract"
    yield f"{contract['held']} rows held, {len(contract['broken'])} did not."
    for row in contract["broken"]:
        yield (
            f"- **{row['symbol'] or '(module)'}** ({row['file']}) {row['verdict']}\n"
            f"  - was: `{row['old']}`\n  - is: `{row['new']}`\n  - needed by: `{row['needed_by']}`"
        )


def _version_section(versions: list[Mapping[str, str]]) -> Iterable[str]:
    yield "## Versions that upstream pins"
    rows = [[row["name"], row["pin"], row["target"]] for row in versions]
    yield _rows(["package", "pin", "target"], rows) if rows else "No change."


def _cure_section(cures: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    yield "## Upstream's own cures"
    rows = []
    for cure in cures:
        state = "gone" if cure["landed"] else "still there"
        rows.append([f"`{cure['symbol'] or cure['file']}`", f"`{cure['code']}`", state])
    yield _rows(["where", "fault", "state"], rows)


def _rows(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
