"""The command line of scripts/diagnose."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from diagnosetool.diagnosis import Diagnosis, decode_steps, diagnose
from diagnosetool.report import as_json, as_text, compared, wrapped
from diagnosetool.stream import EventStream, TraceError
from diagnosetool.timeline import read_timeline
from diagnosetool.trim import find_window, write_trimmed
from diagnosetool.verdict import Verdict

EXIT_CODES = {Verdict.ABSENT: 0, Verdict.CAST: 1, Verdict.UNKNOWN: 3, Verdict.OTHER_CAST: 5}
UNREADABLE = 4
NOTHING_TO_TRIM = 3
INTERRUPTED = 130
NARROWEST = 40

_DESCRIPTION = (
    "Reads a torch profiler trace of an sglang server, plain or gzip, and says "
    "what casting the whole FP8 KV pool costs in each decode step."
)
_CODES = """\
exit codes:
  0  no layer casts the pool; with --trim, the file was written
  1  FlashInfer MLA casts the whole pool
  2  usage error, or a Python older than 3.11
  3  the trace doesn't show it: the reason and a remedy are printed
  4  the file can't be read, or is no trace; or the answer can't be written
  5  another backend casts the whole pool
  130  interrupted; with --trim, nothing was written
With --before and --after, the code is that of the trace after; 3 and 4 are for either.
"""
_RECORD = """

To record a trace of a running server, while it decodes:
  curl -X POST http://HOST:PORT/start_profile -H 'Content-Type: application/json' \\
       -d '{"num_steps": 10, "activities": ["CPU", "GPU"], "record_shapes": true}'
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    _check(parser, options)
    try:
        return _answer(options, None if options.quiet else sys.stderr)
    except TraceError as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return UNREADABLE
    except KeyboardInterrupt:
        print("diagnose: interrupted", file=sys.stderr)
        return INTERRUPTED


def _answer(options: argparse.Namespace, progress: TextIO | None) -> int:
    if options.trim:
        return _trim(options, progress)
    if options.trace:
        return _diagnose(options, progress)
    return _compare(options, progress)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=wrapped([_DESCRIPTION], _width(80), indent=0),
        epilog=wrapped(_CODES.splitlines(), _width(80), indent=5) + _RECORD,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", nargs="?", metavar="TRACE", help="the trace; - reads a pipe")
    parser.add_argument("--before", metavar="A", help="compare this trace")
    parser.add_argument("--after", metavar="B", help="with this one")
    parser.add_argument("--trim", metavar="OUT", type=Path, help="cut TRACE to a few steps in OUT")
    parser.add_argument(
        "--steps", type=int, default=2, help="steps that --trim keeps (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    pair = [options.before, options.after]
    if options.trace and any(pair):
        parser.error("give TRACE, or --before and --after, not both")
    if not options.trace and not all(pair):
        parser.error("give TRACE, or both --before and --after")
    if options.trim and not options.trace:
        parser.error("--trim needs TRACE")
    if options.trim and not Path(options.trace).is_file() and Path(options.trace).exists():
        parser.error(f"--trim reads TRACE twice, and {options.trace} is no regular file")
    if options.trim and options.trace == "-":
        parser.error("--trim reads TRACE twice, which a pipe does not allow: save it first")
    if options.trim and options.trim.exists():
        _check_target(parser, options.trim, Path(options.trace))
    if options.steps < 1:
        parser.error(f"--steps {options.steps} keeps nothing: give 1 or more")


def _check_target(parser: argparse.ArgumentParser, target: Path, trace: Path) -> None:
    if not target.is_file():
        parser.error(f"--trim {target} is no regular file: name a file to write")
    if trace.exists() and target.samefile(trace):
        parser.error(f"--trim {target} would overwrite TRACE: name another file")


def _diagnose(options: argparse.Namespace, progress: TextIO | None) -> int:
    diagnosis = diagnose(EventStream(options.trace, progress))
    if options.json:
        _say(json.dumps(as_json(diagnosis), indent=2))
    else:
        _say(as_text(diagnosis, _width(), _wants_colour()))
    return EXIT_CODES[diagnosis.verdict]


def _compare(options: argparse.Namespace, progress: TextIO | None) -> int:
    before, after = (
        diagnose(EventStream(path, progress)) for path in (options.before, options.after)
    )
    if options.json:
        _say(json.dumps({"before": as_json(before), "after": as_json(after)}, indent=2))
    else:
        _say(compared(before, after, _width()))
    return EXIT_CODES[_unknown_first(before, after).verdict]


def _unknown_first(before: Diagnosis, after: Diagnosis) -> Diagnosis:
    return before if before.verdict is Verdict.UNKNOWN else after


def _trim(options: argparse.Namespace, progress: TextIO | None) -> int:
    timeline = read_timeline(EventStream(options.trace, progress))
    steps = decode_steps(timeline)
    window = find_window(timeline, steps, options.steps) if steps else None
    if window is None:
        reason = f"{options.trace} has no {options.steps} decode steps in a row to keep"
        print(f"diagnose: {reason}: profile more steps, or lower --steps.", file=sys.stderr)
        return NOTHING_TO_TRIM
    size = write_trimmed(EventStream(options.trace, progress), window, options.trim)
    if options.json:
        _say(json.dumps({"file": str(options.trim), "steps": options.steps, "bytes": size}))
    else:
        _say(f"{options.trim}: {options.steps} steps, {size:,} bytes")
    return 0


def _say(text: str) -> None:
    """Print the answer; a reader that has seen enough of it, such as `head`, is no failure."""
    try:
        print(text, flush=True)
    except OSError as error:
        # Python flushes once more at its end, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            reason = f"the answer can't be written ({error.strerror})"
            raise TraceError(f"{reason}: send standard output elsewhere.") from None


def _wants_colour() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _width(elsewhere: int = sys.maxsize) -> int:
    """Columns of the terminal, or COLUMNS; `elsewhere` for an answer that goes to no terminal."""
    return max(shutil.get_terminal_size((elsewhere, 0)).columns, NARROWEST)


def _version() -> str:
    """The project's version; a copy of the scripts alone states none."""
    stated = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if not stated.exists():
        return "of no stated version"
    return str(tomllib.loads(stated.read_text())["project"]["version"])
