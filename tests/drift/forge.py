#!/usr/bin/env python3
"""A stand-in for GitHub's command line: issues and pull requests in a JSON file beside it.

It knows the commands that ci/publish.sh runs, and no others. `forge.down` beside it is an outage.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

STATE = Path(__file__).with_name("forge.json")
DOWN = Path(__file__).with_name("forge.down")
COMMANDS = {
    ("issue", "list"): ("--label", "--state", "--json", "--jq"),
    ("issue", "create"): ("--label", "--title", "--body-file"),
    ("issue", "edit"): ("number", "--title", "--body-file"),
    ("issue", "close"): ("number", "--comment"),
    ("label", "create"): ("number", "--description", "--force"),
    ("pr", "list"): ("--head", "--state", "--json", "--jq"),
    ("pr", "create"): ("--head", "--title", "--body-file"),
}


def parsed(kind: str, verb: str, words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for option in COMMANDS[kind, verb]:
        if option == "--force":
            parser.add_argument(option, action="store_true")
        elif option.startswith("--"):
            parser.add_argument(option, required=True)
        else:
            parser.add_argument(option)
    return parser.parse_args(words)


def main() -> None:
    kind, verb, *words = sys.argv[1:]
    options = parsed(kind, verb, words)
    if DOWN.exists():
        sys.exit("error connecting to the forge")
    state: dict[str, list[dict[str, Any]]] = {"issue": [], "pr": []}
    if STATE.exists():
        state = json.loads(STATE.read_text())
    if kind != "label":
        run(state[kind], verb, options)
    STATE.write_text(json.dumps(state, indent=1))


def run(rows: list[dict[str, Any]], verb: str, options: argparse.Namespace) -> None:
    if verb == "list":
        assert options.jq == ".[0].number // empty"
        wanted = [
            row["number"]
            for row in rows
            if options.state in (row["state"], "all")
            and row.get("head") == getattr(options, "head", None)
        ]
        print(*wanted[-1:])
        return
    if verb == "create":
        rows.append({"number": len(rows) + 1, "state": "open"})
        rows[-1] |= {"head": options.head} if "head" in options else {}
    row = rows[-1] if verb == "create" else rows[int(options.number) - 1]
    if verb == "close":
        row |= {"state": "closed", "comment": options.comment}
    else:
        row |= {"title": options.title, "body": Path(options.body_file).read_text()}


if __name__ == "__main__":
    main()
