#!/usr/bin/env bash
# Makes the test environment .venv, or leaves it alone when it is up to date.
#
# usage: ci/venv.sh
#   PYTHON   the interpreter to make it from (default: python3.11)
# exit: 0 up to date, 2 wrong interpreter or arguments, pip's own code when an install fails
set -euo pipefail

if [ $# -ne 0 ]; then
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi

root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
python=${PYTHON:-python3.11}

if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    echo "ci/venv.sh: '$python' is not a Python 3.11; name one with PYTHON=" >&2
    exit 2
fi

exec 9<"$0"
flock 9  # two make targets may ask for the environment at once

stamp="$(cat "$root/ci/requirements-test.txt" "$0" | sha256sum | cut -d' ' -f1) $root"
if [ "$(cat "$venv/.stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi

"$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check \
    -r "$root/ci/requirements-test.txt"
# Last on the path, so that a real package wins over its stand-in.
echo "$root/tests/stubs" >"$venv/lib/python3.11/site-packages/zz-stubs.pth"
echo "$stamp" >"$venv/.stamp"
echo "ci/venv.sh: made $venv"
