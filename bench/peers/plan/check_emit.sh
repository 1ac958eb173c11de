#!/usr/bin/env bash
# Check `msctl plan --emit` with the parsers of the systems it is for (see check_emit.py).
#   bench/peers/plan/check_emit.sh FOLDER        PY: the interpreter that has msctl and torch
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PY=${PY:-$here/../../../.venv/bin/python}
venv=$1/peers
[ -x "$venv/bin/python" ] || "$PY" -m venv "$venv"
"$venv/bin/pip" install -q --no-deps torchtitan==0.2.1 megatron-core==0.16.1 \
  tyro==1.0.17 docstring-parser typeguard shtab
site=$("$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# torch comes from msctl's environment, behind what is installed here
PYTHONPATH="$site" "$venv/bin/python" -c "
import sys, runpy
sys.path.sort(key=lambda p: p == '$site')
sys.argv = ['check_emit.py', '$PY']
runpy.run_path('$here/check_emit.py', run_name='__main__')"
