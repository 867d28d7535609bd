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


def hook_points(pin: Pin, tree: Tree, python: str | None) -> tuple[Exit, list[str]]:
    """A line a hook point, and 0: all there, 1: one is missing, 6: the tree did not import."""
    executable = python or _test_environment(pin)
    paths = [str(tree.root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    # -P keeps this folder off sys.path: its modules would hide installed ones of the same name.
    command = [executable, "-P", str(HOOK_POINTS)]
    print(f"verify: importing sglang from {tree.root}", file=sys.stderr)
    try:
        run = subprocess.run(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=False
        )
    except OSError as error:
        message = f"{executable}: {error.strerror}; name another interpreter with --python"
        raise Refusal(message, Exit.UNAVAILABLE) from None
    code = Exit(run.returncode) if run.returncode in _PASSED_ON else Exit.UNAVAILABLE
    return code, run.stdout.decode(errors="replace").splitlines()


def _test_environment(pin: Pin) -> str:
    """The interpreter of `.venv`, which ci/venv.sh makes or leaves alone."""
    script = pin.repository / "ci" / "venv.sh"
    try:
        subprocess.run([str(script)], stdout=sys.stderr, check=True)
    except (OSError, subprocess.CalledProcessError):
        message = f"{script} makes no test environment: name an interpreter with --python"
        raise Refusal(message, Exit.UNAVAILABLE) from None
    return str(pin.repository / ".venv" / "bin" / "python")
