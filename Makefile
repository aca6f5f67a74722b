# Two commands for a bare machine (Python >= 3.11 and make): `make demo`, `make test`.
# Everything runs in .venv, made from the hash-locked requirements.lock: by uv where it is
# installed, else by venv + pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
UV := $(shell command -v uv 2>/dev/null)

# Linters of deploy/ and the maker of the SBOM: large, and no part of the gate.
TOOLS := .tools

# Compiled modules are kept, whatever the environment says: workers and each `kvgate` that a test
# starts would compile all of it again, a tenth of the whole.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q

.PHONY: demo test lint format fetch test-slow test-slow-alone test-slow-timed test-slow-untimed engine \
  test-real test-real-alone test-real-beside bench lock sbom clean

demo: $(READY)
	$(BIN)/kvgate demo

# Half of what the tests take is waiting, for a timer or for another process: three at a time keep two
# processors busy, and leave those that measure time room.
test: $(READY)
	$(BIN)/python -m compileall -q gateway
	$(PYTEST) -n 3 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff check --fix -q . || true
	$(BIN)/ruff format -q .

# What the slow suites bring from elsewhere, once: tools, tokenizers, other people's clients.
fetch: $(READY) $(TOOLS)/ready
	$(BIN)/python -m tests.tokens.fetch_tokenizers
	$(BIN)/python -m tests.clients.install

# Of the slow tests those that neither measure time nor are given a time to answer in: they may take as long
# as they like, so `.ci/run` has them in the background.
UNTIMED := tests/core tests/deploy tests/lab tests/policy tests/tokens

# A file's tests together: those that share something expensive (an image, a laboratory's runs) stand in one. Not `loadgroup`, which groups nothing with pytest 9.2 (pytest-xdist 3.8.0, issue 1386).
BY_FILE := --dist loadfile --no-loadscope-reorder

# Soaks and large differential suites: minutes, not seconds.
test-slow: fetch
	$(MAKE) test-slow-alone
	$(MAKE) test-slow-timed
	$(MAKE) test-slow-untimed

# Gates that share budgets are compared with one gate, so they have the machine to themselves.
test-slow-alone: fetch
	$(PYTEST) -m slow --timeout 600 tests/lease

test-slow-timed: fetch
	$(PYTEST) -n 3 $(BY_FILE) -m slow --timeout 1500 $(addprefix --ignore ,tests/lease $(UNTIMED))

test-slow-untimed: fetch
	$(PYTEST) -n 3 $(BY_FILE) -m slow --timeout 1500 $(UNTIMED)
	$(PYTEST) -n 3 -m "hypothesis and not slow" --hypothesis-profile thorough --timeout 600

# A genuine SGLang on CPU: about two minutes to install once (into .real/).
engine: $(READY)
	$(BIN)/python -m tests.real.install

# One server, which takes 20 s to start, for most of them; another for those whose numbers are told to people,
# and which therefore have the machine to themselves.
test-real: engine
	$(MAKE) test-real-alone
	$(MAKE) test-real-beside

test-real-alone: engine
	$(PYTEST) -m alone --timeout 300 tests/real

test-real-beside: engine
	$(PYTEST) -m "not alone" --timeout 300 tests/real

# Beside other gateways: make bench RIVALS=1 installs them once, into .rivals/ (LiteLLM is large).
bench: $(READY)
ifdef RIVALS
	$(BIN)/python -m tests.bench.rivals
endif
	$(BIN)/python -m tests.bench

# What a plain installation brings with it, with the hashes of the lock: dist/kvgate.cdx.json.
sbom: $(READY) $(TOOLS)/ready
	mkdir -p dist
	$(BIN)/python deploy/runtime_lock.py > dist/runtime.lock
	$(TOOLS)/bin/cyclonedx-py requirements dist/runtime.lock --pyproject pyproject.toml \
	  --mc-type application --spec-version 1.6 --output-reproducible -o dist/kvgate.cdx.json

# The lock files name versions and hashes, never an index.
COMPILE := uv pip compile -q --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-annotate --no-header
lock:
	$(COMPILE) --group dev pyproject.toml -o requirements.lock
	$(COMPILE) tests/deploy/tools.in -o tests/deploy/tools.lock

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

$(TOOLS)/ready: tests/deploy/tools.lock
	$(PYTHON) -m venv --clear $(TOOLS)
	$(TOOLS)/bin/pip install -q --disable-pip-version-check --require-hashes -r tests/deploy/tools.lock
	touch $(TOOLS)/ready

clean:
	rm -rf $(VENV) $(TOOLS) .real .clients .rivals .mypy_cache .ruff_cache .pytest_cache .hypothesis
