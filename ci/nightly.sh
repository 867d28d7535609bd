#!/usr/bin/env bash
# Looks for a newer sglang, carries the default pin to it, and tests the new pin on the CPU.
#
# usage: ci/nightly.sh [RELEASE]
#   RELEASE  the release to look at (default: the newest that pip finds)
#   PIN      the pin to carry (default: patches/default)
#   TESTS    the command that tests the new pin (default: make test)
#   PYTHON   the interpreter that writes docs/support.md (default: .venv/bin/python)
# Leaves out/nightly/: summary.md, the reports in <pin>..<release>/, rebase.log, tests.log, and at
# last `ended`, a word for ci/publish.sh: current, pinned, drift, landed <release>, or failed.
# exit: as `scripts/carry drift` (0, 10, 15, 20, 30, 40); 1 if the tests of the new pin fail;
#       2 for a usage error
set -euo pipefail

if [ $# -gt 1 ] || [[ ${1:-} == -* ]]; then
    sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
cd "$(dirname "$0")/.."

out=out/nightly
pin=(${PIN:+--pin "$PIN"})
tests=${TESTS:-make test}
python=${PYTHON:-.venv/bin/python}

fenced() { sed -e '1i ```' -e '$a ```'; }
# An untested pin of a night that was killed is no pin: $out/carried names it.
take_back() {
    [ ! -f "$out/carried" ] || rm -rf "patches/$(cat "$out/carried")"
    [ ! -d "$out/before" ] || cp -r "$out/before/." .
}
ended() {
    echo "$1" >"$out/ended.new"
    mv "$out/ended.new" "$out/ended"
    echo "ci/nightly.sh: exit $2, $1; see $out/summary.md"
    exit "$2"
}

take_back
rm -rf "$out"
mkdir -p "$out"

code=0
scripts/carry drift "${pin[@]}" ${1:+--to "$1"} --out "$out" || code=$?
report=$(find "$out" -name report.md)
if [ -z "$report" ] || [ "$code" = 40 ]; then
    echo "ci/nightly.sh: exit $code, the newest sglang could not be looked at" >&2
    exit "$code"
fi

pair=$(basename "$(dirname "$report")")
target=${pair#*..}
cp "$report" "$out/summary.md"
[ "${pair%..*}" != "$target" ] || ended current "$code"
[ ! -d "patches/$target" ] || ended pinned "$code"
[ "$code" -le 10 ] || ended drift "$code"

mkdir "$out/before"
cp --parents README.md docs/support.md patches/earlier "$out/before"
echo "$target" >"$out/carried"
failed=0
{
    scripts/carry rebase "${pin[@]}" --to "$target" --out "$out" || [ $? = "$code" ]
    "$python" -m tests.gpu.report
} >"$out/rebase.log" 2>&1 || failed=1
if [ "$failed" = 0 ]; then
    $tests >"$out/tests.log" 2>&1 || failed=1
fi
{
    for log in rebase tests; do
        printf '\n## %s\n\n' "The end of $log.log"
        tail -n 20 "$out/$log.log" | fenced
    done
} >>"$out/summary.md" 2>/dev/null || true
if [ "$failed" = 1 ]; then
    cp -r "patches/$target" "$out/pin" 2>/dev/null || true
    take_back
    sed -i "1s/:.*/: the pin that was carried fails/" "$out/summary.md"
    rm -f "$out/carried"
    ended failed 1
fi
rm "$out/carried"
ended "landed $target" "$code"
