#!/bin/sh
# The whole line of msctl on one machine: plan, train, resume, diagnose. Run by `make demo`.
#
# MSCTL names the command; runs go to runs/ as always. An earlier demo run is put aside, not deleted.
set -eu
cd "$(dirname "$0")/.."
MSCTL=${MSCTL:-.venv/bin/msctl}

show() {
    printf '\n$ msctl %s\n' "$*"
    "$MSCTL" "$@"
}

if [ -e runs/tiny ]; then
    mv runs/tiny "runs/tiny-before-$(date +%Y%m%d-%H%M%S)"
fi

show plan --model 175b --gpus 12288 --top 5
show train recipes/tiny.toml
# Twenty steps more: the run continues from its last checkpoint.
show train recipes/tiny.toml --set train.steps="$(($(sed -n 's/^steps = //p' recipes/tiny.toml) + 20))"
show diagnose --job last
