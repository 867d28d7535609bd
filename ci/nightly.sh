#!/usr/bin/env bash
# Looks for a newer sglang, carries the default pin to it, and tests the new pin on the CPU.
#
# usage: ci/nightly.sh [RELEASE]
#   RELEASE  the release to look at (default: the newest that pip finds)
#   PIN      the pin to carry (default: patches/default)
#   TESTS    the command that tests the new pin (default: make test)
# Leaves out/nightly/: summary.md, the reports in <pin>..<release>/, rebase.log and tests.log.
# exit: as `scripts/carry drift` (0, 10, 20, 30, 40); 1 if the tests of the new pin fail;
#       2 for a usage error
set -euo pipefail

if [ $# -gt 1 ] || [[ ${1:-} == -* ]]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
cd "$(dirname "$0")/.."

fenced() { sed -e '1i ```' -e '$a ```'; }

out=out/nightly
pin=(${PIN:+--pin "$PIN"})
tests=${TESTS:-make test}
rm -rf "$out"
mkdir -p "$out"

code=0
scripts/carry drift "${pin[@]}" ${1:+--to "$1"} --out "$out" || code=$?
report=$(find "$out" -name report.md)
if [ -z "$report" ]; then
    echo "# No drift report: the newest sglang could not be looked at (exit $code)" \
        >"$out/summary.md"
    exit "$code"
fi

pair=$(basename "$(dirname "$report")")
target=${pair#*..}
{
    cat "$out/$pair/report.md"
    echo
    echo "## Rebase"
    echo
} >"$out/summary.md"

landed=
if [ -d "patches/$target" ]; then
    echo "patches/$target is there; nothing to carry." >>"$out/summary.md"
elif [ "$code" -lt 20 ]; then
    scripts/carry rebase "${pin[@]}" --to "$target" --out "$out" >"$out/rebase.log" 2>&1 || true
    [ -f "patches/$target/lock.toml" ] && landed=$target
    fenced <"$out/rebase.log" >>"$out/summary.md"
else
    echo "Not tried: the report has to be settled first." >>"$out/summary.md"
fi

if [ -n "$landed" ]; then
    echo "$landed" >"$out/landed"
    failed=0
    $tests >"$out/tests.log" 2>&1 || failed=1
    {
        printf '\n## Tests with patches/%s\n\n' "$landed"
        tail -n 20 "$out/tests.log" | fenced
    } >>"$out/summary.md"
    if [ "$failed" = 1 ]; then
        rm "$out/landed"
        code=1
    fi
fi
echo "ci/nightly.sh: exit $code; see $out/summary.md"
exit "$code"
