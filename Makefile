# The verbs of the project. `make demo` and `make test` set up everything they need on a fresh machine.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	if $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help demo test check format lock clean

help:  ## say what the verbs do
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "prudent needs Python 3.11 or newer with the venv module; install it or say PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "building .venv with $(PYTHON) from requirements.lock (once)"
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)  ## both seed stories on the practice ground, in under two minutes
	@$(BIN)/python -m evals.demo

# Tests of hosts wait most of their time, and the others beside them have no opinion about speed: those two go side by
# side. What measures speed has the machine to itself.
WAITING := tests/hosts
COUNTING := tests/evals/campaigns tests/memory tests/policies tests/tools/test_*.py tests/tools/engines tests/tools/serve_script
ALONE := tests/agent tests/evals/bench tests/evals/lab tests/tools/probe tests/test_packaging.py

test: $(READY)  ## every test, the slow and the real ones included
	@other=$$(mktemp); trap 'rm -f $$other' EXIT; \
	$(BIN)/python -m pytest --durations=25 -o cache_dir=.pytest_cache/waiting $(WAITING) >$$other 2>&1 & waiting=$$!; \
	$(BIN)/python -m pytest --durations=25 -o cache_dir=.pytest_cache/counting $(COUNTING); counting=$$?; \
	wait $$waiting; waiting=$$?; cat $$other; \
	$(BIN)/python -m pytest --durations=25 -o cache_dir=.pytest_cache/alone $(ALONE); alone=$$?; \
	exit $$((counting || waiting || alone))

check: $(READY)  ## format, lint, types, import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)  ## rewrite the sources in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock:  ## pin every dependency again (needs uv)
	uv pip compile pyproject.toml --group dev --universal --generate-hashes --python-version 3.11 --no-emit-index-url --no-header -o requirements.lock --upgrade

clean:  ## remove what the other verbs built
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
