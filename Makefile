# make demo | make test | make lint | make bench | make stack; PYTHON chooses the interpreter of a new .venv.
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= demo,dev
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.bench-installed
DOCS_STAMP := $(VENV)/.docs-installed

.DEFAULT_GOAL := help
.PHONY: help venv demo stack bench docs test lint format constraints clean

help:  ## Show this list.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /  make \1|/' | column -t -s '|'

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "No venv: on Debian and Ubuntu, apt install python3-venv"; exit 2; }
	@echo "installing into $(VENV): some minutes, 2 GB"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

venv: $(STAMP)  ## Make .venv and install everything into it.

demo: $(STAMP)  ## Tune version v1 of a network, then v2 from what v1 taught; under ten minutes.
	$(BIN)/bcd-registry tune --model v1
	@echo
	$(BIN)/bcd-registry tune --model v2

stack: $(STAMP)  ## Start PostgreSQL, an S3 server and MLflow here and print the exports; ARGS=--help lists what it takes.
	@$(BIN)/python infra/local_stack.py $(ARGS)

# On Linux the default torch brings CUDA; with an index of CPU builds in PIP_EXTRA_INDEX_URL it is some gigabytes less.
$(BENCH_STAMP): $(STAMP)
	@echo "installing torch and transformers into $(VENV): some minutes, 1 GB"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS),bench]'
	@touch $@

bench: $(if $(PART),$(BENCH_STAMP),$(STAMP))  ## List the parts of the benchmark and what they lack; PART=1 runs one.
	$(BIN)/python -m tests.benchmarks.run $(if $(PART),--part $(PART))

$(DOCS_STAMP): $(STAMP)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS),docs]'
	@touch $@

docs: $(DOCS_STAMP)  ## Build the pages into build/site.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(STAMP)  ## ruff, mypy and the layers.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP)  ## Sort imports and format.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test: $(STAMP)  ## Every test.
	$(BIN)/python -m pytest

constraints:  ## Pin what .venv holds now, after an upgrade with .venv/bin/pip.
	@{ echo "# Tested together. Made by 'make constraints'; do not edit."; \
	   $(BIN)/python -m pip freeze --exclude-editable | sed -E 's/\+[a-z0-9.]+$$//'; } > constraints.txt

clean:  ## Remove the environment, the caches and what the demo wrote.
	rm -rf $(VENV) .venv-ci demo-output build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
