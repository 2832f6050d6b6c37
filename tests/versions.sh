#!/usr/bin/env bash
# Runs the quick tests with several versions of TensorFlow, each in a new virtual environment, and
# prints a row of a table for each. PYTHON names the interpreter; PYTEST_ADDOPTS adds options.
#
#   tests/versions.sh                # 2.16, 2.18 and 2.21
#   PYTHON=python3.12 tests/versions.sh 2.18
#   tests/versions.sh nightly
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
[ $# -gt 0 ] || set -- 2.16 2.18 2.21
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for version in "$@"; do
  "$python" -m venv --clear "$work/venv"
  pip() { "$work/venv/bin/pip" "$@"; }
  if [ "$version" = nightly ]; then
    cat requirements.txt requirements-mpi.txt requirements-dev.txt \
      | sed '/^-r/d; /^tensorflow/d; s/^protobuf.*/protobuf/' > "$work/run.txt"
    pip install -q tf-nightly -r "$work/run.txt"
  else
    # Before 2.21, TensorBoard imports `pkg_resources`, which setuptools 82 lacks.
    pip install -q -r requirements-dev.txt "tensorflow==$version.*" 'setuptools<82'
  fi
  "$work/venv/bin/python" -m pytest -q -m "not slow" > "$work/log" 2>&1 || {
    failed=1
    cat "$work/log"
  }
  packages=$("$work/venv/bin/python" -c 'import platform
from importlib.metadata import version
print(platform.python_version(), "|", version("numpy"), "|", version("protobuf"))')
  # Not the last line: TensorFlow may log something after it.
  echo "| $version | $packages | $(grep -E ' in [0-9.]+s' "$work/log" | tail -n 1) |"
done
exit "$failed"
