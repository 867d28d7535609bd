"""The verbs that look at other releases: drift and rebase."""

from __future__ import annotations

import argparse
from pathlib import Path

from overlaytool import drift, rebase, report
from overlaytool.drift import Decisions, Drift
from overlaytool.errors import Exit, Refusal
from overlaytool.pin import Pin


def run_drift(pin: Pin, args: argparse.Namespace) -> int:
    """Reports what a release or a tree would break."""
    found = _measure(pin, args, Decisions())
    _tell(found, _written(found, args))
    return found.exit


def run_rebase(pin: Pin, args: argparse.Namespace) -> int:
    """Reports the same, then writes the new pin where everything is settled."""
    found = _measure(pin, args, Decisions(frozenset(args.drop), args.resolved))
    folder = _written(found, args)
    obstacle = rebase.obstacle(found)
    if obstacle is None:
        print(f"landed     {rebase.land(found)}")
    else:
        for name, content in rebase.refreshed(found).items():
            (folder / "patches").mkdir(exist_ok=True)
            (folder / "patches" / name).write_bytes(content)
        print(f"no new pin: {obstacle}; settled patches are in {folder / 'patches'}")
    _tell(found, folder)
    return found.exit


def _measure(pin: Pin, args: argparse.Namespace, decisions: Decisions) -> Drift:
    try:
        return drift.measure(pin, args.to, decisions)
    except Refusal as refusal:
        code = refusal.code if refusal.code is Exit.USAGE else Exit.UNTRIED
        raise Refusal(f"{refusal} (could not try)", code) from refusal


def _written(found: Drift, args: argparse.Namespace) -> Path:
    label = found.target.release or found.target.name.removeprefix("the tree ")
    out = args.out or found.pin.repository / "out" / "drift"
    folder = Path(out) / f"{found.pin.release}..{label}"
    try:
        report.write(found, folder)
    except OSError as error:
        raise Refusal(f"cannot write the report: {error}", Exit.UNTRIED) from error
    return folder


def _tell(found: Drift, folder: Path) -> None:
    for patch in found.carried:
        notes = "; ".join(f"{file.path} {file.note}".strip() for file in patch.files if file.note)
        print(f"{patch.verdict:<11}{patch.name:<28}{notes}".rstrip())
    for row in found.findings:
        if row.verdict != "held":
            print(f"{row.verdict:<11}{row.symbol or row.file}  {row.old} -> {row.new}")
            print(f"{'':<11}needed by {row.needed_by}")
    for cure in found.cures:
        if cure.landed:
            print(f"{'cured':<11}{cure.symbol or cure.file}  {cure.code} is gone")
            print(f"{'':<11}needed by {cure.needed_by}")
    print(f"{report.sentence(found)}; see {folder / 'report.md'}")
