# Every target sets up what it needs inside this checkout. System packages are installed by `make setup-system` alone.
.DELETE_ON_ERROR:
.PHONY: help setup setup-system demo test soak check format generate lock clean bench docs setup-docs setup-torch

VENV := .venv
BIN := $(VENV)/bin
# Somebody without a home that can be written to has no cache either: pip need not say so for each package.
PIP_CACHE := $(shell [ -w "$${HOME:-/nonexistent}" ] || echo --no-cache-dir)
PIP := $(BIN)/pip $(PIP_CACHE) install --quiet --disable-pip-version-check
READY := $(VENV)/.ready
PROTOS := $(wildcard protos/ztdpu/v1/*.proto protos/ztdpu/workloadapi/*.proto)
GENERATED := ztdpu/v1 ztdpu/workloadapi

help: ## What can be made.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(READY) ## A virtual environment with the locked packages; the command is then .venv/bin/ztdpu.

$(READY): requirements.lock pyproject.toml deploy/pick-python.sh
	@[ -w . ] || { echo "setup: this checkout has no up-to-date .venv, and $$(id -un) may not write here" >&2; \
	  echo "  next: make setup as its owner, or work in a copy of your own" >&2; exit 1; }
	@python=$$(sh deploy/pick-python.sh) && echo "setup: $$python ($$($$python --version))" && \
	  { [ -x $(BIN)/python ] || $$python -m venv $(VENV); }
	@echo "setup: installing the locked packages (one to two minutes the first time)"
	@$(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

setup-system: ## Install what the demo and the tests need from Debian or Ubuntu (asks apt-get; root).
	@sh deploy/setup-system.sh install

setup-docs: $(READY) ## Install what `make docs` needs (locked) into the same virtual environment.
	@$(PIP) --require-hashes -r docs/requirements.lock

setup-torch: $(READY) ## Install PyTorch for examples/train_ddp.py (1 GB; on machines without GPU take its CPU build).
	@$(PIP) torch==2.13.0

docs: $(READY) ## The documentation as web pages, in build/docs; a warning is an error.
	@$(BIN)/python -c 'import furo, myst_parser, sphinx' 2>/dev/null || $(MAKE) --no-print-directory setup-docs
	@$(BIN)/sphinx-build -W --keep-going -q -E -b html docs build/docs
	@echo "docs: build/docs/index.html"

demo: $(READY) ## A lab, two trainings, attacks, a revocation: one minute, as root or not. ARGS="-o json" for machines.
	@sh deploy/setup-system.sh demo
	@$(BIN)/ztdpu demo $(ARGS)

bench: $(READY) ## Throughput, latency, CPU, attestation, policy on this machine. ARGS=overlay, ARGS="--quick", ARGS=--help.
	@sh deploy/setup-system.sh verify
	@$(BIN)/python -m ztdpu.lab.bench $(ARGS)

test: $(READY) ## All tests, with real namespaces where that is claimed. ARGS are pytest's.
	@sh deploy/setup-system.sh verify
	@$(BIN)/pytest -n 2 --dist loadscope --no-loadscope-reorder $(ARGS)

soak: $(READY) ## Further moments and rounds of what `make test` tries once.
	@sh deploy/setup-system.sh verify
	@$(BIN)/pytest -m soak $(ARGS)

check: $(READY) ## Lint, types, layers, generated code unchanged.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	sh deploy/generate.sh --verify
	$(BIN)/ztdpu policy schema policies/schema --verify

format: $(READY) ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: $(READY) ## Make ztdpu/v1 and ztdpu/workloadapi from protos/.
	sh deploy/generate.sh

LOCK := uv pip compile --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --python-version 3.11

lock: ## Resolve the three requirements.lock files, with hashes (needs uv).
	$(LOCK) pyproject.toml --extra demo --extra dev -o requirements.lock
	$(LOCK) pyproject.toml -c requirements.lock -o deploy/requirements.lock
	$(LOCK) docs/requirements.in -c requirements.lock -o docs/requirements.lock

clean: ## Remove the virtual environment and caches.
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
