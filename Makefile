# make demo      trains 300 steps on generated images and evaluates them; downloads no images
# make test      runs the linters and the quick tests (about two minutes on two idle cores)
# make check     runs the linters and all tests (about a quarter of an hour)
# make coverage  runs the quick tests and prints how much of each file they execute
# make format    sorts imports and repairs what the linter can repair
# make docs      builds the site into _site/
# make notebook  runs docs/tutorial.ipynb anew, from docs/tutorial.md
#
# Variables: PYTHON=python3.12, REQUIREMENTS=requirements-gpu.txt.
PYTHON = python3
REQUIREMENTS = requirements.txt

.NOTPARALLEL:  # Targets share .venv.
.PHONY: demo test check coverage format docs notebook help tools
demo: .venv/$(REQUIREMENTS)
	.venv/bin/python cifar10_convert.py synthetic .demo
	.venv/bin/python cifar10_train.py --data_dir=.demo --train_dir=.demo/run --max_steps=300 --restart
	.venv/bin/python cifar10_eval.py --data_dir=.demo --checkpoint_dir=.demo/run \
	    --eval_dir=.demo/eval --run_once
	@echo 'It works. Next: source .venv/bin/activate, then python cifar10_train.py --max_steps=1000'

test: .venv/requirements-dev.txt
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/python -m pytest -m "not slow"

help:
	@sed -n '/^# make/s/^# //p' Makefile

check: .venv/requirements-dev.txt tools
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/python -m pytest --durations=10 -rs

coverage: .venv/requirements-dev.txt
	.venv/bin/coverage run -m pytest -m "not slow" -q
	.venv/bin/coverage combine -q
	.venv/bin/coverage report

format: .venv/requirements-dev.txt
	.venv/bin/ruff check --fix .

docs: .venv/requirements-docs.txt
	.venv/bin/sphinx-build -q -W -c docs/site . _site

notebook: .venv/requirements-dev.txt
	.venv/bin/python docs/notebook.py

# A copy of the requirements shows what is installed; it is older than changed requirements.
.venv/%: % $(wildcard requirements*.txt)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit( \
	    f"Python {sys.version.split()[0]} found; expected 3.10 or newer: add PYTHON=python3.12"); \
	    sys.version_info < (3, 14) or print("Python 3.14 and newer have not been tested.")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo 'Python has no module venv: apt install python3-venv, or choose another PYTHON'; exit 1; }
	@$(PYTHON) -m venv .venv
	@echo 'Installing $< into .venv: up to 2 GB, a minute or more.'
	@.venv/bin/pip install -r $<
	@cp $< $@

# Tests of two machines need `ip`; without, they are skipped.
tools:
	@if [ -n "$$CI" ] && [ "$$(id -u)" = 0 ] && ! command -v ip >/dev/null; then \
	    apt-get -qq update && apt-get -qq install -y iproute2 >/dev/null; fi
