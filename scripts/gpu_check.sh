#!/usr/bin/env bash
# Every check of the project that wants a GPU, in one run of a few minutes, on a machine that has one:
#
#     bash scripts/gpu_check.sh PREPARED [--wheels DIR] [--out DIR] [--limit SECONDS] [--only NAME ...]
#
# PREPARED is a folder that `nmt prepare --out PREPARED` made, here or elsewhere: neither spaCy nor torchtext is
# needed. Packages that the machine lacks (pydantic, say) come from DIR, a folder of wheels, without network and
# into a temporary folder. OUT/gpu_check.jsonl gets a line for each check; OUT is $OUT or gpu_check. Where there is
# no GPU, the checks that need none are done, and the others say that they were skipped.
# Exit code: 0 unless a check failed. Another Python than python3: PYTHON=... bash scripts/gpu_check.sh ...
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}

rest=()
wheels=
while [ $# -gt 0 ]; do
    case $1 in
        --wheels) wheels=$2 && shift 2 ;;
        *) rest+=("$1") && shift ;;
    esac
done

export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "$wheels" ]; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
    export PYTHONPATH="$site:$PYTHONPATH"
fi
"$python" "$root/scripts/gpu_check.py" "${rest[@]}"
