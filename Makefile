# `make run` and `make test` are all that a newcomer needs; each installs what it needs first.

BIN := .venv/bin
ARGS ?=
export PYTHON

.PHONY: help run test lint format chaos bench bench-large lock clean

help: ## Show these lines
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile

run: ## Install, start the bridge and print its address (ARGS="--config FILE")
	@scripts/install run
	@exec $(BIN)/causeway run $(ARGS)

test: ## Run all tests (ARGS="-k words" for some of them)
	@scripts/install dev
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: ## Lint, formatting, types, import borders, tidiness
	@scripts/install dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_tree.py

format: ## Format and mend what can be mended
	@scripts/install dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# CAUSEWAY_CHAOS_SEED repeats the choices of an earlier storm.
CAUSEWAY_KILLS ?= 500
CAUSEWAY_CHAOS_SEED ?= $(shell date +%s)

chaos: ## Kill the bridge a thousand times, and at every commit of its store (hours; ARGS="-k sqlite")
	@scripts/install dev
	CAUSEWAY_KILLS=$(CAUSEWAY_KILLS) CAUSEWAY_CHAOS_SEED=$(CAUSEWAY_CHAOS_SEED) CAUSEWAY_POINTS=all \
		$(BIN)/python -m pytest tests/chaos/test_random_kills.py tests/chaos/test_commit_points.py $(ARGS)
	CAUSEWAY_KILLS=100 CAUSEWAY_CHATS=2000 CAUSEWAY_CHAOS_SEED=$(CAUSEWAY_CHAOS_SEED) \
		$(BIN)/python -m pytest tests/chaos/test_roles_chaos.py

bench: ## Measure milliseconds and CPU a message (ARGS for the benchmark)
	@scripts/install dev
	$(BIN)/python -m benchmarks $(ARGS)

bench-large: ## Measure SQLite with 100,000 sessions and 10 million entries (ARGS="--sessions N --messages M")
	@scripts/install dev
	$(BIN)/python -m benchmarks large $(ARGS)

# Existing pins are kept; ARGS=--upgrade takes the newest versions. The tests' lock is held to the program's
# pins, so that one environment serves both.
COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --group build

lock: ## Write the lock files anew from pyproject.toml
	@test -x $(BIN)/uv || scripts/install dev
	$(COMPILE) --extra all --output-file requirements.lock $(ARGS)
	$(COMPILE) --extra dev --constraint requirements.lock --output-file requirements-dev.lock $(ARGS)

clean: ## Remove what was installed and built (never the workspace)
	rm -rf .venv build dist tests/node/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache *.egg-info
	find . -name __pycache__ -type d -not -path './workspace/*' -prune -exec rm -rf {} +
