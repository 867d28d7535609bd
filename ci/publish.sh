#!/usr/bin/env bash
# Puts what ci/nightly.sh left on the forge: one issue, and a pull request with a tested pin.
#
# usage: ci/publish.sh
#   reads out/nightly/; needs `gh`, logged in, and a git checkout with a remote `origin`
# One open issue with the label "drift" is updated, or opened; it is closed when there is no drift.
# exit: 0 published or nothing to say, 2 usage error, otherwise that of the command that failed
set -euo pipefail

if [ $# -ne 0 ]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
cd "$(dirname "$0")/.."

out=out/nightly
if [ ! -f "$out/summary.md" ]; then
    echo "ci/publish.sh: there is no $out/summary.md: run ci/nightly.sh first" >&2
    exit 2
fi
title=$(sed -n '1s/^# //p' "$out/summary.md")
issue=$(gh issue list --label drift --state open --json number --jq '.[0].number // empty')

if [[ $title == *"up to date" || $title == *"clean;"* ]]; then
    [ -z "$issue" ] || gh issue close "$issue" --comment "$title"
elif [ -n "$issue" ]; then
    gh issue edit "$issue" --title "$title" --body-file "$out/summary.md"
else
    gh label create drift --description "sglang has moved" 2>/dev/null || true
    gh issue create --label drift --title "$title" --body-file "$out/summary.md"
fi

[ -f "$out/landed" ] || exit 0
release=$(cat "$out/landed")
branch=pin/$release
git switch --quiet -C "$branch"
git add -- "patches/$release"
git commit --quiet --message "Pin sglang $release"
git push --quiet --force origin "$branch"
if [ -z "$(gh pr list --head "$branch" --state open --json number --jq '.[0].number // empty')" ]; then
    gh pr create --head "$branch" --title "Pin sglang $release" --body-file "$out/summary.md"
fi
