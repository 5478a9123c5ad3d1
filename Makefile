VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := requirements/dev.txt
RESTATE := $(VENV)/restate
RESTATE_STAMP := $(VENV)/.restate
RESTATE_SERVER := @restatedev/restate-server@1.7.12

# The first interpreter that is new enough; override with `make PYTHON=/path/to/python`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/pytest -n auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup python demo test check static sweep soak bench format lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) $(RESTATE_STAMP) ## Create .venv from the lock, with perdure installed in place

demo: $(STAMP) ## See an agent killed and nothing done twice or lost, in under a minute
	$(BIN)/perdure demo

test: static $(RESTATE_STAMP) ## Everything a change must pass: format, lint, types, layers, all tests
	$(PYTEST)

check: static ## The fast part of `make test`, without the slow tests
	$(PYTEST) -m "not slow and not sweep"

static: $(STAMP) ## Format, lint, layers and types only
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright

sweep: $(STAMP) $(RESTATE_STAMP) ## The long crash sweeps
	$(PYTEST) -m sweep

soak: $(STAMP) $(RESTATE_STAMP) ## Ten minutes of noise for the parsers, and hours of workers that die
	PERDURE_SOAK_SECONDS=1200 $(PYTEST) tests/models/test_fuzz.py
	PERDURE_TRIALS=30 $(BIN)/pytest tests/engines/test_trials.py
	PERDURE_CLIENTS_SECONDS=180 $(BIN)/pytest tests/engines/test_clients.py

bench: $(STAMP) ## The benchmarks
	$(BIN)/python -m benchmarks

format: $(STAMP) ## Format the code and apply the safe lint fixes
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

lock: python ## Regenerate the lock (newest versions: make lock LOCKFLAGS=--upgrade)
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	$(PYTHON) -m venv "$$tmp" && \
	"$$tmp/bin/pip" install --disable-pip-version-check --quiet uv && \
	"$$tmp/bin/uv" pip compile pyproject.toml --group dev --all-extras --universal --python-version 3.11 \
		--generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock" \
		--quiet --output-file $(LOCK) $(LOCKFLAGS)

clean: ## Remove the environment, caches and build output
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "perdure needs Python 3.11 or newer: install it, or name one with make PYTHON=/path/to/python." >&2; exit 1; }

# A missing stamp means that the last installation did not finish: start over instead of repairing it.
$(STAMP): $(LOCK) pyproject.toml | python
	@test -f $@ || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@
	$(PIP) install --require-hashes -r $(LOCK)
	$(PIP) install --no-deps --no-build-isolation -e .
	$(PIP) check
	@touch $@

# The server behind one of the engines comes from npm, for its tests only; without npm they are skipped, and say so.
$(RESTATE_STAMP): | $(STAMP)
	@npm install --prefix $(RESTATE) --no-save --no-package-lock --ignore-scripts --no-audit --no-fund --silent \
		--fetch-retries=1 $(RESTATE_SERVER) && touch $@ || \
		echo "Restate's server could not be had from npm: what needs it is not tested." >&2
