#!/usr/bin/env bash
# The main job on the embedded captions: prepare, train, evaluate, translate; and the model that comes with nmt.
# `make demo` runs it after the set-up.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"
unset NMT_MODEL  # another model would go before the one that is trained here

# Prints the command as one would type it, then runs it.
step() {
    local word line='$'
    for word in "$@"; do
        case $word in
            *' '*) line+=" \"$word\"" ;;
            *) line+=" $word" ;;
        esac
    done
    printf '\n%s\n' "$line"
    "$@"
}

step nmt prepare --config captions.yaml
step nmt train --config captions.yaml --overwrite
step nmt evaluate --config captions.yaml --split test
# None of these stands in the training text.
step nmt translate --config captions.yaml \
    "Ein kleines Mädchen reitet auf einem Pferd durch den Schnee." \
    "Eine Familie klettert auf eine Leiter, um Kirschen zu pflücken." \
    "Das müde Kind fängt auf einer nassen Wiese den Ball."

printf '\n%s\n' "The next model comes with nmt and is learned from Multi30k, see nmt/pretrained/MODEL_CARD.md:"
step nmt translate --model multi30k-de-en "Eine Frau mit rotem Hut liest am Strand ein Buch."
