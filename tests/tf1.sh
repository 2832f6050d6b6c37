#!/usr/bin/env bash
# Compares this project and the stages of docs/migration with TensorFlow 1.15.5, which is installed
# in a new virtual environment. Requires Python 3.7: its interpreter is PYTHON37, or python3.7.
# Arguments are pytest's.
#
#   tests/tf1.sh
#   PYTHON37=~/miniconda3/envs/tf1/bin/python tests/tf1.sh -k ten_steps
set -euo pipefail
cd "$(dirname "$0")/.."

python37=${PYTHON37:-python3.7}
if ! "$python37" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 7))' 2> /dev/null; then
  echo "$python37 is not Python 3.7: install it, or set PYTHON37." >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python37" -m venv "$work/venv"
"$work/venv/bin/pip" install -q -U pip
"$work/venv/bin/pip" install -q 'tensorflow==1.15.5' 'protobuf<3.21'
TF1_PYTHON="$work/venv/bin/python" "${PYTHON:-python3}" -m pytest -q tests/docs/test_tf1.py "$@"
