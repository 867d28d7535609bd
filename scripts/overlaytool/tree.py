"""Finding a sglang tree, and what it says about itself, without importing it."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from overlaytool.errors import Exit, Refusal

PACKAGE = "sglang"
_VERSION = re.compile(r"^__version__ *(?:= *\w+ *)*= *['\"]([^'\"]+)['\"]", re.MULTILINE)
_METADATA_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)
# find_spec of a top-level name imports nothing; the empty entry that -c adds is the caller's
# working directory, which is not part of the interpreter.
_FIND = """
import importlib.util, json, sys
sys.path[:] = [entry for entry in sys.path if entry]
spec = importlib.util.find_spec("sglang")
print("found: " + json.dumps(list(spec.submodule_search_locations or []) if spec else []))
"""


@dataclass(frozen=True)
class Tree:
    """A sglang tree: `root` is the folder to put on sys.path, `package` the real sglang folder."""

    root: Path
    package: Path

    def file(self, path: str) -> Path:
        """Where a path of the lock (`sglang/...`) lies in this tree."""
        return self.package / path.removeprefix(f"{PACKAGE}/")

    def read(self, path: str) -> bytes | None:
        """Bytes at a path of the lock, or `None` where nothing is."""
        try:
            return self.file(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Refusal(
                f"cannot read {self.file(path)}: {error.strerror}", Exit.UNWRITABLE
            ) from None

    def link(self, path: str) -> Path | None:
        """The first symbolic link on the way from the package folder to a path of the lock."""
        target = self.file(path)
        chain = [target, *target.parents]
        below = chain[: chain.index(self.package)]
        return next((step for step in reversed(below) if step.is_symlink()), None)

    def version(self) -> str | None:
        """The version that the tree states, or `None` (a raw git checkout states none)."""
        stated = _search(_VERSION, self.package / "_version.py")
        if stated:
            return stated
        folders = sorted(self.root.glob(f"{PACKAGE}-*.dist-info"))
        return next((v for f in folders if (v := _search(_METADATA_VERSION, f / "METADATA"))), None)


def _search(pattern: re.Pattern[str], file: Path) -> str | None:
    try:
        match = pattern.search(file.read_text(errors="replace"))
    except OSError:
        return None
    return match[1] if match else None


def at(folder: Path) -> Tree:
    """The tree in a folder that holds `sglang/` (wheel, site-packages) or `python/sglang/`."""
    roots = [folder, folder / "python"]
    found = [root for root in roots if (root / PACKAGE).is_dir()]
    # What an uninstall leaves of an applied tree is a folder without __init__.py.
    found.sort(key=lambda root: not (root / PACKAGE / "__init__.py").exists())
    if not found:
        raise Refusal(
            f"{folder} holds neither {PACKAGE}/ nor python/{PACKAGE}/: name the folder above it",
            Exit.USAGE,
        )
    root = found[0].absolute()
    return Tree(root, (root / PACKAGE).resolve())


def of_interpreter(executable: str) -> Tree:
    """The tree that an interpreter would import, found without importing it."""
    try:
        run = subprocess.run([executable, "-c", _FIND], capture_output=True, check=True)
        # What runs at start and at exit may print as well.
        lines = [line for line in run.stdout.splitlines() if line.startswith(b"found: ")]
        places: list[str] = json.loads(lines[-1].removeprefix(b"found: "))
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        message = f"{executable} does not run as a Python interpreter: name one with --python"
        raise Refusal(message, Exit.USAGE) from None
    folders = [Path(place) for place in places if Path(place).is_dir()]
    if not folders:
        message = f"{executable} finds no {PACKAGE} folder: install sglang there, or use --tree"
        raise Refusal(message, Exit.USAGE)
    return Tree(folders[0].parent.absolute(), folders[0].resolve())
