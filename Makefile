# The commands that README names.
#
#   make demo     trains 300 steps on generated images and evaluates them; downloads no images
#   make test     runs the linter and the quick tests
#   make check    runs the linter and all tests
#
# Variables: PYTHON=python3.12, REQUIREMENTS=requirements-gpu.txt.
PYTHON = python3
REQUIREMENTS = requirements.txt

.NOTPARALLEL:  # Targets share .venv.
.PHONY: demo test check tools
demo: .venv/$(REQUIREMENTS)
	.venv/bin/python cifar10_train.py --dataset=synthetic --data_dir=.demo --train_dir=.demo/run \
	    --max_steps=300 --restart
	.venv/bin/python cifar10_eval.py --dataset=synthetic --data_dir=.demo \
	    --checkpoint_dir=.demo/run --eval_dir=.demo/eval --run_once

test: .venv/requirements-dev.txt
	.venv/bin/ruff check .
	.venv/bin/python -m pytest -m "not slow"

check: .venv/requirements-dev.txt tools
	.venv/bin/ruff check .
	.venv/bin/python -m pytest --durations=10 -rs

# A copy of the requirements shows what is installed; it is older than changed requirements.
.venv/%: % requirements.txt
	@$(PYTHON) -c 'import sys; (3, 10) <= sys.version_info < (3, 14) or sys.exit( \
	    f"Python {sys.version.split()[0]} found; expected 3.10 to 3.13: add PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo 'Python has no module venv: apt install python3-venv, or choose another PYTHON'; exit 1; }
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip install -q -r $<
	@cp $< $@

# Tests of cut links need `ip`, and stand-ins for GPUs a C compiler; without, they are skipped.
tools:
	@if [ -n "$$CI" ] && [ "$$(id -u)" = 0 ] && ! { command -v ip && command -v cc; } >/dev/null; then \
	    apt-get -qq update && apt-get -qq install -y iproute2 gcc libc6-dev >/dev/null; fi
