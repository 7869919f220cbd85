# The command words: setup, demo, check, test, test-all, test-faults, soak, test-live, bench, docs, release.
# Each sets up what it needs.
# WHEEL=path installs that wheel in place of this source tree (CI tests what it ships).

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=
PYTEST_JOBS ?= 3 # tests wait for disks and processes more than they compute

.PHONY: setup demo up check test test-all test-faults soak test-live bench docs lock release clean

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml $(WHEEL)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed (Debian: apt install python3 python3-venv), or set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall $(if $(WHEEL),$(WHEEL),-e .)
	@touch $(STAMP)

demo: setup
	$(BIN)/memory-tasks demo

up: setup
	$(BIN)/memory-tasks up

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: setup
	$(BIN)/python -m pytest -n $(PYTEST_JOBS) --dist loadscope -m "not slow and not live" $(PYTEST_ARGS)

test-all: setup
	$(BIN)/python -m pytest -m "not live" $(PYTEST_ARGS)

# SEED=n, LONG=1 (the full sizes, hours), KILLS=n, JOBS=n (at the same time), SCENARIOS="F7 store" (beginnings of names).
test-faults: setup
	$(BIN)/python -m tests.faults --seed $(or $(SEED),1) $(if $(LONG),--long) $(if $(KILLS),--kills $(KILLS)) \
		--jobs $(or $(JOBS),1) $(SCENARIOS)

# MINUTES=30, SEED=n (a random one is taken and printed).
soak: setup
	$(BIN)/python -m tests.faults.soak --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

test-live: setup
	@test -n "$(RUSHDB_URL)" -a -n "$(RUSHDB_TOKEN)" || { echo "make test-live RUSHDB_URL=http://host:3000 RUSHDB_TOKEN=key (an empty project)"; exit 1; }
	RUSHDB_URL="$(RUSHDB_URL)" RUSHDB_TOKEN="$(RUSHDB_TOKEN)" $(BIN)/python -m pytest -m live tests/live $(PYTEST_ARGS)

bench: setup
	$(BIN)/python -m tests.benchmarks

docs: setup
	$(BIN)/python -m ops.settings_table --write README.md

# Needs `uv`. Names, versions and hashes only; ops/requirements.lock is for the image.
lock:
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --no-annotate --python-version 3.11 \
		--extra worker --extra embedded --extra flower --extra dev pyproject.toml -o requirements.lock
	sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' requirements.lock > .lock-constraints
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --no-annotate --python-version 3.11 \
		--extra worker --extra flower -c .lock-constraints pyproject.toml -o ops/requirements.lock
	rm .lock-constraints

release: setup check test-all
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
