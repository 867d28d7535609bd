#!/usr/bin/env bash
# Makes the test environment .venv, or leaves it alone when it is up to date.
#
# usage: ci/venv.sh
#   PYTHON   the interpreter to make it from, 3.11 to 3.13 (default: python3, or the first such one
#            on the path)
# exit: 0 up to date, 2 wrong interpreter or arguments, pip's own code when an install fails
set -euo pipefail

if [ $# -ne 0 ]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi

root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv

version() {
    "$1" -c 'import sys; (3, 11) <= sys.version_info < (3, 14) or sys.exit(1)
print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

for python in ${PYTHON:+"$PYTHON"} ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
    release=$(version "$python") && break
done
if [ -z "$release" ]; then
    echo "ci/venv.sh: '${PYTHON:-python3}' is no Python 3.11, 3.12 or 3.13: name one with PYTHON=" >&2
    exit 2
fi

exec 9<"$0"
flock 9  # two make targets may ask for the environment at once

stamp="$(cat "$root/ci/requirements-test.txt" "$0" | sha256sum | cut -d' ' -f1) $root"
made=$(cat "$venv/.stamp" 2>/dev/null || true)
# One of another Python is up to date as well where none was asked for.
if [ "$made" = "$stamp $release" ] || [[ -z ${PYTHON:-} && ${made% *} = "$stamp" ]]; then
    exit 0
fi

echo "ci/venv.sh: making $venv with Python $release: 2 GB, some minutes" >&2
"$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --no-compile --disable-pip-version-check \
    -r "$root/ci/requirements-test.txt"
# Last on the path, so that a real package wins over its stand-in.
echo "$root/tests/stubs" >"$venv/lib/python$release/site-packages/zz-stubs.pth"
echo "$stamp $release" >"$venv/.stamp"
echo "ci/venv.sh: made $venv"
