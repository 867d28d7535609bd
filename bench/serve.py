"""Serve a model with several back ends in turn; record TPOT, TTFT and the greedy tokens.

  python -m bench.serve run --model DIR --out FILE     measure (adds to FILE what it lacks)
  python -m bench.serve compare FILE                   tokens and TPOT against the first setup

Each setup gets an engine in a process of its own. A record is written as soon as it is measured, so
the same command continues a run that was stopped.

exit status: 0 done; 1 an engine failed, or `compare` found tokens that should be equal and are not,
or a wrong row that went unseen; 2 usage; 130 interrupted (no process is left running).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from bench.compare import compare
from bench.loads import Load
from bench.results import Results
from bench.runner import Plan, WorkerFailed, run
from bench.setups import DRAFT_STEPS, SETUPS, Engine

DEFAULT_LOADS = ["1x100", "1x8192", "16x8192", "64x2048"]
LOAD_HELP = (
    "BATCHxTOKENS, or BATCHxTOKENS+PREFIX to start on a cached prefix; one of these leaves the "
    "prefix cache on for all, and repeats of the others then find their prompts in it"
)
DEFAULT_POOL = 495_552


def main(arguments: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the engines then, too
    parser = _parser()
    chosen = parser.parse_args(arguments)
    try:
        if chosen.verb == "compare":
            return compare(Results.load(chosen.file), chosen.against)
        return _measure(chosen)
    except ValueError as problem:
        parser.error(str(problem))
    except KeyboardInterrupt:
        print("interrupted: finished records are kept, the same command continues", file=sys.stderr)
        return 130


def _measure(chosen: argparse.Namespace) -> int:
    plan = plan_from(chosen)
    results = results_for(plan, chosen.out)
    status = 0
    try:
        run(plan, results)
    except WorkerFailed as problem:
        print(problem, file=sys.stderr)
        status = 1
    against = chosen.setups[0]
    return max(status, compare(results, against)) if against in results.setups() else status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    measure = verbs.add_parser("run", help="measure")
    measure.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    measure.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    measure.add_argument("--setups", nargs="+", default=["stock", "compact"], choices=list(SETUPS))
    measure.add_argument("--loads", nargs="+", default=DEFAULT_LOADS, help=LOAD_HELP)
    measure.add_argument(
        "--pool", type=int, default=DEFAULT_POOL, help="KV tokens; 0: all that fit"
    )
    measure.add_argument("--repeats", type=int, default=5)
    measure.add_argument(
        "--accept",
        type=int,
        default=0,
        metavar="TOKENS",
        help="serve with the draft DIR-draft, and have each verify step accept that many tokens",
    )
    add_options(measure)
    measure.add_argument(
        "--interleave",
        action="store_true",
        help="start all engines at once, repeats interleaved, for ratios (needs the memory)",
    )
    against = verbs.add_parser("compare", help="compare the setups of a file")
    against.add_argument("file", type=Path)
    against.add_argument("--against", default="stock", help="the setup to compare with")
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command that serves."""
    parser.add_argument("--tokens", type=int, default=32, help="tokens to generate")
    parser.add_argument("--fraction", type=float, default=0.85, help="of free device memory")
    parser.add_argument("--logs", type=Path, help="folder for the engines' output")
    parser.add_argument(
        "--trace",
        type=Path,
        help="folder for a profiler trace of each engine, under the first load",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="a further argument of sglang.Engine, such as tp_size=8; may be repeated",
    )


def plan_from(chosen: argparse.Namespace) -> Plan:
    """The plan that the arguments of `add_options` ask for; ValueError if they make no sense."""
    if not (chosen.model / "config.json").exists():
        raise ValueError(f"{chosen.model} has no config.json: make it with python -m bench.model.")
    if chosen.tokens < 2 or chosen.repeats < 1:
        raise ValueError("--tokens must be 2 or more and --repeats 1 or more.")
    loads = [Load.parse(text) for text in chosen.loads]
    engine = Engine(
        str(chosen.model),
        chosen.pool or None,
        chosen.fraction,
        cached_prefix=any(load.prefix for load in loads),
        options=dict(_option(text) for text in chosen.option),
        accepted=chosen.accept,
    )
    if engine.accepted:
        _require_draft(engine, chosen.tokens)
    return Plan(
        engine=engine,
        setups=[SETUPS[name] for name in chosen.setups],
        loads=loads,
        repeats=chosen.repeats,
        tokens=chosen.tokens,
        interleave=chosen.interleave,
        logs=chosen.logs or chosen.out.parent / "logs",
        trace=chosen.trace,
    )


def _require_draft(engine: Engine, tokens: int) -> None:
    if not 1 <= engine.accepted <= DRAFT_STEPS + 1:
        raise ValueError(f"--accept {engine.accepted}: give 1 to {DRAFT_STEPS + 1} tokens a step.")
    if (tokens - 1) % engine.accepted:
        raise ValueError(
            f"--tokens {tokens}: prefill gives one, so give one more than a multiple of "
            f"--accept {engine.accepted}."
        )
    if not Path(engine.draft, "config.json").exists():
        raise ValueError(
            f"{engine.draft} has no config.json: make it with python -m bench.draft {engine.draft}."
        )


def _option(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise ValueError(f"--option {text}: write NAME=JSON, such as tp_size=8.") from None


def results_for(plan: Plan, path: Path) -> Results:
    """Results to add to, from an earlier run of the same plan if `path` has one."""
    about = plan.about()
    if not path.exists():
        return Results(path, about)
    results = Results.load(path)
    if results.about != about:
        if not results.records:
            return Results(path, about)
        raise ValueError(f"{path} holds another run ({results.about}): name another with --out.")
    return results


if __name__ == "__main__":
    sys.exit(main())
