# Two commands matter: `make demo` and `make test`. Each installs what it needs into .venv first.

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The first interpreter between 3.10 and 3.13; `make PYTHON=/path/to/python3.12 ...` picks another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$p && break; done)
# Numeric libraries use the cores by ranks, not by threads within one.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test test-fast coverage mutants house lint format types docs docs-site docs-check \
	pictures bench bench-gpu gpu package golden install clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(STAMP) ## plan for 12,288 GPUs, train on eight CPU ranks, resume, diagnose
	MSCTL=$(BIN)/msctl sh demo/demo.sh

test: $(STAMP) ## all tests, the fastest first
	$(BIN)/pytest

test-fast: $(STAMP) ## tests that start no process
	$(BIN)/pytest -n auto --maxprocesses 8 -m "not multi and not slow and not native and not gpu"

coverage: $(STAMP) ## lines that tests run, by file (takes longer than make test)
	rm -rf build/coverage && mkdir -p build/coverage
	-$(BIN)/coverage run -m pytest -q
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

mutants: $(STAMP) ## changes of ROOM's core files (schedule, plan, ckpt, diagnose) that tests notice
	$(BIN)/pip install -q "mutmut>=3.8"
	$(BIN)/python -m tools.mutants $(ROOM)

house: $(STAMP) ## the house rules
	$(BIN)/pytest tests/house

lint: format-check types ## format, lint, types

.PHONY: format-check
format-check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP) ## mypy
	$(BIN)/mypy

format: $(STAMP) ## rewrite the code in the house's form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP) ## write the generated reference pages and the recipe's JSON Schema
	$(BIN)/python -m tools.generate

docs-site: $(STAMP) ## the documentation as a site in build/site; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

pictures: $(STAMP) ## draw the pictures of the documentation
	$(BIN)/python -m tools.pictures

bench: $(STAMP) ## run the side-by-side benchmarks, write docs/explanation/benchmarks.md (an hour)
	$(BIN)/python -m tools.bench

gpu: $(STAMP) ## on a machine with a GPU: its tests, then bench-gpu
	$(BIN)/pytest -m gpu
	$(MAKE) bench-gpu

bench-gpu: $(STAMP) ## operators, and a training step beside plain torch, on a GPU
	$(BIN)/python bench/ops/bench_ops.py --device cuda --dtype bf16 --rows 8192 --hidden 8192
	$(BIN)/python -m bench.gpu --size 1.3b

package: $(STAMP) ## wheel and source archive in dist/, tried in empty environments
	$(BIN)/python -m tools.package

docs-check: $(STAMP) ## say which generated pages are stale
	$(BIN)/python -m tools.generate --check

golden: $(STAMP) ## rewrite golden files; look at the diff before you commit it
	$(BIN)/pytest --golden -q -m "not gpu"

install: $(STAMP) ## only set up .venv

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python between 3.10 and 3.13 found" >&2; \
		echo "hint: install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
		echo "hint: on Debian: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean: ## remove .venv and caches, never runs/
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
