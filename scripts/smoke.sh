#!/usr/bin/env bash
# The whole pipeline with a small model, in a temporary folder: prepare, train, evaluate, translate.
# It should take less than a minute on two cores, and fails where it takes more than SMOKE_LIMIT_S.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"
unset NMT_MODEL  # another model would go before the one that is trained here

limit_s=${SMOKE_LIMIT_S:-120}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail() {
    echo "smoke failed: $*" >&2
    exit 1
}

SECONDS=0
nmt train --config smoke.yaml
[ -s runs/smoke/best.safetensors ] || fail "training left no runs/smoke/best.safetensors"

nmt evaluate --config smoke.yaml --split test | tee scores.txt
grep -q 'BLEU' scores.txt || fail "evaluate printed no BLEU"

nmt translate --config smoke.yaml "Ein Hund läuft." | tee translation.txt
[ "$(wc -l < translation.txt)" -eq 1 ] || fail "one sentence in, not one line out"

[ "$SECONDS" -le "$limit_s" ] || fail "it took $SECONDS s, more than $limit_s s"
echo "smoke passed in $SECONDS s"
