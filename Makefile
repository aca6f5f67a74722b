# Two commands for a bare machine (Python >= 3.11 and make): `make demo`, `make test`.
# Everything runs in .venv, made from the hash-locked requirements.lock: by uv where it is
# installed, else by venv + pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
UV := $(shell command -v uv 2>/dev/null)

.PHONY: demo test lint format types imports test-slow test-real bench lock clean

demo: $(READY)
	$(BIN)/kvgate demo

test: $(READY)
	$(BIN)/pytest -q

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff check --fix -q . || true
	$(BIN)/ruff format -q .

# Soaks and large differential suites: minutes, not seconds.
test-slow: $(READY)
	$(BIN)/python -m tests.tokens.fetch_tokenizers
	$(BIN)/pytest -q -m slow --timeout 900

# A genuine SGLang on CPU: about two minutes to install once (into .real/), 30 s to start.
test-real: $(READY)
	$(BIN)/python -m tests.real.install
	$(BIN)/pytest -q -m "slow or not slow" --timeout 300 tests/real

bench: $(READY)
	$(BIN)/python -m tests.bench

# The lock file names versions and hashes, never an index.
lock:
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --no-header --group dev pyproject.toml -o requirements.lock

$(READY): requirements.lock pyproject.toml
ifdef UV
	$(UV) venv -q --clear --python $(PYTHON) $(VENV)
	$(UV) pip install -q --python $(BIN)/python --require-hashes -r requirements.lock
	$(UV) pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
else
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kvgate needs Python 3.11 or newer")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
endif
	touch $(READY)

clean:
	rm -rf $(VENV) .real .mypy_cache .ruff_cache .pytest_cache .hypothesis
