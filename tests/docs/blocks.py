"""The fenced blocks of the documentation.

Blocks tagged `sh` are run by the tests, in order, in one workspace a document; `sh gpu` are not:
they need a GPU, or packages that only a GPU host has; nor are `sh ci`, which the CI script runs
itself. A command that is meant to fail says so in a comment, `# exit N`. A block tagged
`output` holds what the commands of the block before it print; in it a line `...` stands for any
lines, and `/path/to/clone` for the workspace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^```(?P<tag>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"#.*\bexit (\d+)")
CLONE = "/path/to/clone"
TAGS = {
    "sh",
    "sh gpu",
    "sh ci",
    "output",
    "dockerfile",
    "text",
    "json",
    "python",
    "toml",
    "mermaid",
}


@dataclass(frozen=True)
class Block:
    """One fenced block; `tag` is what stands after the fence."""

    tag: str
    body: str

    def commands(self) -> Iterator[tuple[str, int]]:
        """Each command with the exit code that it is to have; continued lines are joined."""
        for line in self.body.replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                expected = _EXIT.search(line)
                yield line, int(expected[1]) if expected else 0


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a Markdown text, in order."""
    return [Block(found["tag"].strip(), found["body"]) for found in _FENCE.finditer(text)]


def shows(body: str, printed: str, workspace: str) -> bool:
    """Whether an `output` block is what was printed in `workspace`."""
    parts = ("\n" + body.strip() + "\n").split("\n...\n")
    pattern = r"\n(?:.*\n)*?".join(re.escape(part) for part in parts)
    text = "\n" + printed.replace(workspace, CLONE).strip() + "\n"
    return re.fullmatch(pattern, text) is not None
