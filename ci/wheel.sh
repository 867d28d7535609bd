#!/usr/bin/env bash
# Builds the wheel to out/wheel/.
#
# usage: ci/wheel.sh [TAG]
#   TAG      v and the version, as a release is tagged: another one stops it
#   PYTHON   the interpreter that has pip (default: python3)
# exit: 0 built, 1 the tag names another version, 2 usage error, pip's own code when it fails
set -euo pipefail

if [ $# -gt 1 ] || [[ ${1:-} == -* ]]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
if [ "${1:-v$version}" != "v$version" ]; then
    echo "ci/wheel.sh: the tag is $1, pyproject.toml has $version: tag v$version" >&2
    exit 1
fi
rm -rf out/wheel
"${PYTHON:-python3}" -m pip wheel --no-deps --disable-pip-version-check --wheel-dir out/wheel .
