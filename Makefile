# minga: `make demo` and `make test` set up all they need in .venv and do the job.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test test-slow lint check clean
help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "minga needs Python 3.11, 3.12 or 3.13; name one: make PYTHON=python3.11 ..." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "this Python cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV) (once; torch and hivemind are about 1.2 GB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# torch first and pinned: an unpinned one would bring gigabytes of CUDA to machines that cannot use it
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --prefer-binary -e '.[dev]'
	@touch $(READY)

demo: $(READY)  ## three unequal peers train a model of Python source on this computer
	@$(BIN)/minga demo

test: $(READY)  ## unit, property and swarm tests
	@$(BIN)/python -m pytest -q -m "not slow"

test-slow: $(READY)  ## the tests that take minutes
	@$(BIN)/python -m pytest -q -m slow

check: lint test  ## everything that has to pass

lint: $(READY)  ## ruff, mypy strict, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
