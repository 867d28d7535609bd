"""The hook points, seen from inside an interpreter that imports the tree."""

import os
import subprocess
import sys
from pathlib import Path

from overlaytool.errors import Exit, Refusal
from overlaytool.pin import Pin
from overlaytool.tree import Tree

HOOK_POINTS = Path(__file__).with_name("hookpoints.py")
_PASSED_ON = (Exit.OK, Exit.FAILED)


def hook_points(pin: Pin, tree: Tree, python: str | None) -> int:
    """Print one line a hook point; 0 all there, 1 one is missing, 6 the tree did not import."""
    executable = python or str(pin.repository / ".venv" / "bin" / "python")
    paths = [str(tree.root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    # -P keeps this folder off sys.path: its modules would hide installed ones of the same name.
    command = [executable, "-P", str(HOOK_POINTS)]
    sys.stdout.flush()
    try:
        run = subprocess.run(command, env={**os.environ, **environment}, check=False)
    except OSError as error:
        message = f"{executable}: {error.strerror}; make the test environment with ci/venv.sh"
        raise Refusal(message, Exit.UNAVAILABLE) from None
    return run.returncode if run.returncode in _PASSED_ON else Exit.UNAVAILABLE
