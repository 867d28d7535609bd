"""Command line of `scripts/carry`."""

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path

from overlaytool import command
from overlaytool.command import Verb
from overlaytool.errors import Exit, Refusal
from overlaytool.pin import REPOSITORY, Pin

from carrytool import drift, drift_report, make_lock, rebase
from carrytool.drift import Decisions, Drift
from carrytool.lint import lint as lint_pin

_COMMON = (Exit.OK, Exit.FAILED, Exit.USAGE, Exit.UNAVAILABLE)
_DRIFT = (
    Exit.OK,
    Exit.USAGE,
    Exit.REFRESH,
    Exit.READ,
    Exit.CONFLICT,
    Exit.CONTRACT,
    Exit.UNTRIED,
)


def lock(pin: Pin, args: argparse.Namespace) -> int:
    """Write the lock again."""
    changed = make_lock.write(pin)
    print(f"{'written' if changed else 'no difference'}: {pin.lock_file}")
    return Exit.OK


def lint(pin: Pin, args: argparse.Namespace) -> int:
    """Faults in the patch files."""
    faults = lint_pin(pin)
    print(*faults, f"lint: {len(faults)} faults in {len(pin.series())} patches", sep="\n")
    return Exit.FAILED if faults else Exit.OK


def check(pin: Pin, args: argparse.Namespace) -> int:
    """Lint; then lock and contract against their sources, with the round trip of every patch."""
    code = lint(pin, args)
    stale = False
    for file, fresh in make_lock.texts(pin).items():
        text = file.read_text() if file.exists() else ""
        names = (f"{file.name} (on disk)", f"{file.name} (as it should be)")
        lines = difflib.unified_diff(
            text.splitlines(), fresh.splitlines(), *names, n=1, lineterm=""
        )
        print(*lines, sep="\n", end="\n" if text != fresh else "")
        stale = stale or text != fresh
    print(f"check: the lock of {pin.release} is {'stale: run `make lock`' if stale else 'sound'}")
    return Exit.FAILED if stale else code


def run_drift(pin: Pin, args: argparse.Namespace) -> int:
    """Report what a release or a tree would break."""
    found = _measure(pin, args, Decisions())
    _written(found, args)
    return found.exit


def run_rebase(pin: Pin, args: argparse.Namespace) -> int:
    """Report the same, then write the new pin where everything is settled."""
    found = _measure(pin, args, Decisions(frozenset(args.drop), args.resolved, args.read))
    folder = _written(found, args)
    obstacle = rebase.obstacle(found)
    if obstacle is None:
        print(f"landed: {rebase.land(found)}")
        return found.exit
    for name, content in rebase.refreshed(found).items():
        (folder / "patches").mkdir(exist_ok=True)
        (folder / "patches" / name).write_bytes(content)
    print(f"no new pin: {obstacle}; settled patches are in {folder / 'patches'}")
    return found.exit


def _measure(pin: Pin, args: argparse.Namespace, decisions: Decisions) -> Drift:
    try:
        return drift.measure(pin, args.to, decisions, args.base)
    except Refusal as refusal:
        code = refusal.code if refusal.code is Exit.USAGE else Exit.UNTRIED
        raise Refusal(f"{refusal} (could not try)", code) from refusal


def _written(found: Drift, args: argparse.Namespace) -> Path:
    """Print the report and write it to its folder."""
    label = found.target.release or found.target.name.removeprefix("the tree ")
    out = args.out or found.pin.repository / "out" / "drift"
    folder = Path(out) / f"{found.pin.release}..{label}"
    try:
        print(drift_report.write(found, folder), f"written to {folder}", sep="\n")
    except OSError as error:
        raise Refusal(f"cannot write the report: {error}", Exit.UNTRIED) from error
    return folder


def _drift(sub: argparse.ArgumentParser) -> None:
    text = "a release, or a folder with a tree (the newest release)"
    sub.add_argument("--to", metavar="RELEASE|DIR", help=text)
    _out(sub)


def _rebase(sub: argparse.ArgumentParser) -> None:
    text = "a release, or a folder with a tree"
    sub.add_argument("--to", metavar="RELEASE|DIR", required=True, help=text)
    _out(sub)
    text = "the overlay fits what is to be read and what is broken"
    sub.add_argument("--read", action="store_true", help=text)
    text = "holds PATCH/sglang/... as you edited them"
    sub.add_argument("--resolved", type=_folder, metavar="DIR", help=text)
    text = "leave a patch out"
    sub.add_argument("--drop", action="append", default=[], metavar="PATCH", help=text)


def _out(sub: argparse.ArgumentParser) -> None:
    text = "compare with this release in place of the pin's"
    sub.add_argument("--base", metavar="RELEASE|DIR", help=text)
    sub.add_argument("--out", type=Path, metavar="DIR", help="where reports go (out/drift)")


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    return Path(text)


VERBS = {
    "lint": Verb(lint, "check the form of the patches", _COMMON),
    "lock": Verb(
        lock,
        "write the pin's lock and contract from the pinned wheel, the patches and the overlay, and "
        "add what earlier locks held to patches/earlier",
        _COMMON,
    ),
    "check": Verb(
        check,
        "lint, round trip of every patch on the pinned wheel, and the lock's difference",
        _COMMON,
    ),
    "drift": Verb(
        run_drift,
        "report what another release, or a tree, does to what the pin depends on",
        _DRIFT,
        _drift,
        failed=Exit.UNTRIED,
    ),
    "rebase": Verb(
        run_rebase,
        "report the same, and write the new pin where every patch is settled",
        _DRIFT,
        _rebase,
        failed=Exit.UNTRIED,
    ),
}


def main(arguments: Sequence[str] | None = None, repository: Path = REPOSITORY) -> int:
    """Run one verb and return its exit code."""
    about = "Keep the pins sound, and take them to new releases of sglang."
    args = command.parser("carry", about, VERBS).parse_args(arguments)
    return command.run(f"carry {args.verb}", VERBS[args.verb], args, repository)
