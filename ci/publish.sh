#!/usr/bin/env bash
# Puts what ci/nightly.sh left on the forge: one issue, and a pull request with a tested pin.
#
# usage: ci/publish.sh
#   reads out/nightly/; needs `gh`, logged in, and a git checkout with a remote `origin`
# One open issue with the label "drift" is updated, or opened; it is closed where sglang has nothing
# newer than the pin. A night that did not end leaves all as it is. A pull request is made once: no
# branch that is there is pushed to, and what a person closed stays closed.
# exit: 0 published or nothing to say, 2 usage error, otherwise that of the command that failed
set -euo pipefail

if [ $# -ne 0 ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
cd "$(dirname "$0")/.."

out=out/nightly
if [ ! -f "$out/ended" ]; then
    echo "ci/publish.sh: the night did not end; nothing is published"
    exit 0
fi
read -r ended release <"$out/ended"
title=$(sed -n '1s/^# //p' "$out/summary.md")
issue=$(gh issue list --label drift --state open --json number --jq '.[0].number // empty')

case $ended in
current) [ -z "$issue" ] || gh issue close "$issue" --comment "$title" ;;
pinned) ;;
*)
    if [ -n "$issue" ]; then
        gh issue edit "$issue" --title "$title" --body-file "$out/summary.md"
    else
        gh label create drift --description "sglang has moved" --force
        gh issue create --label drift --title "$title" --body-file "$out/summary.md"
    fi
    ;;
esac
[ "$ended" = landed ] || exit 0

branch=pin/$release
made=$(gh pr list --head "$branch" --state all --json number --jq '.[0].number // empty')
if [ -n "$made" ]; then
    echo "ci/publish.sh: pull request $made had this pin; it is left as it is"
    exit 0
fi
paths=("patches/$release" patches/earlier README.md docs/support.md)
index=$(mktemp -d)
trap 'rm -rf "$index"' EXIT
GIT_INDEX_FILE=$index/index git read-tree HEAD
GIT_INDEX_FILE=$index/index git add -- "${paths[@]}"
tree=$(GIT_INDEX_FILE=$index/index git write-tree)
there=$(git ls-remote --heads origin "refs/heads/$branch" | cut -f1)
if [ -z "$there" ]; then
    commit=$(git commit-tree -p HEAD -m "Pin sglang $release" "$tree")
    git push --quiet origin "$commit:refs/heads/$branch"
else
    git fetch --quiet origin "$there"
    if ! git diff --quiet "$there" "$tree" -- "${paths[@]}"; then
        echo "ci/publish.sh: the branch $branch holds something else; it is left as it is"
        exit 0
    fi
fi
gh pr create --head "$branch" --title "Pin sglang $release" --body-file "$out/summary.md"
