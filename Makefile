# Every target that needs the virtual environment makes it first, so `make check` is the only command a clone needs.
# `make up` and `make demo` install what running needs; the tools of developers come with the first target that uses them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNNING := $(VENV)/.installed-to-run
# What builds and checks a release, in an environment of its own: none of it is needed to run.
RELEASING := build/release/.installed
EXTRAS := aws,dev,plot,postgres,ssh
# More than cores, because many tests wait. They are handed on from whoever is behind: the slow folders come first
# in one piece, which would otherwise be one worker's alone.
WORKERS ?= 3
TARGETS ?= down up stream body
SECONDS ?= 60
# Tests start hundreds of processes, and each would read the same sources anew.
export PYTHONDONTWRITEBYTECODE :=

# Only what exists is handed to the tools: mypy and pytest refuse a folder that is not there.
CODE := $(wildcard src/holdfast bench tests tools)
QUICK_TESTS := $(wildcard tests/unit tests/property)

.DEFAULT_GOAL := help
.PHONY: help up demo venv native check lint test fuzz bench golden format pins dist audit clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(RUNNING)  ## a control plane and three local nodes; Ctrl-C ends them
	@PATH="$(abspath $(BIN)):$$PATH" holdfast up $(ARGS)

demo: $(RUNNING)  ## the story by itself, in about a minute
	@PATH="$(abspath $(BIN)):$$PATH" holdfast demo $(ARGS)

venv: $(STAMP)  ## create .venv with everything installed (quick when nothing changed)

$(RUNNING): pyproject.toml constraints.txt
	@$(PYTHON) tools/install.py $(VENV)
	@touch $@

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) tools/install.py $(VENV) $(EXTRAS)
	@touch $(RUNNING) $@

native: $(STAMP)  ## compile the hot path of the gateway's workers (needs gcc; a minute)
	$(BIN)/python -m holdfast.gateway.compile

lint: $(STAMP)  ## formatting, lint rules, types and the direction of imports
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports

check: lint  ## lint, then the unit and property tests (under a minute)
	$(BIN)/python -m pytest -q $(QUICK_TESTS)

# Types and the compiler take a minute each, on one core: side by side they take it once. Where nothing can be
# compiled, the tests that need it say so.
test: $(STAMP)  ## lint, then every test there is: what CI runs
	@$(BIN)/python -m holdfast.gateway.compile & $(MAKE) --no-print-directory lint; linted=$$?; wait; exit $$linted
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal tests

fuzz: $(STAMP)  ## made-up bytes for each reader of a gateway: make fuzz SECONDS=300 TARGETS="down up"
	@for name in $(TARGETS); do \
	  $(BIN)/python -m tests.fuzz.drive $$name build/fuzz/$$name -max_total_time=$(SECONDS) || exit 1; \
	done

bench: $(STAMP)  ## run one benchmark: make bench NAME=decide ARGS="--json"
	@test -n "$(NAME)" || { echo 'which benchmark? make bench NAME=decide' >&2; exit 2; }
	$(BIN)/python -m bench $(NAME) $(ARGS)

golden: $(STAMP)  ## write the transcripts of all scenarios anew: read the difference
	@for story in scenarios/*.toml; do $(BIN)/holdfast sim run $$story > $${story%.toml}.out || exit 1; done

format: $(STAMP)  ## format the code and apply the safe lint fixes
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

pins:  ## renew constraints.txt and the lock files with hashes from a fresh environment
	rm -rf build/pins
	$(PYTHON) -m venv build/pins
	build/pins/bin/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	build/pins/bin/python -m pip freeze --exclude-editable --exclude holdfast > constraints.txt
	build/pins/bin/python tools/pins.py
	rm -rf build/pins

$(RELEASING):
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check build==1.6.1 cyclonedx-bom==7.5.0 pip-audit==2.10.1
	@touch $@

dist: $(RELEASING)  ## what is released, in dist: wheel, source archive, SBOM and SHA256SUMS, built twice and tried
	$(PYTHON) tools/dist.py $(<D)/bin/python $(ARGS)

audit: $(RELEASING)  ## known vulnerabilities in the pins (offline: OSV=all.zip), and secrets in the history
	$(PYTHON) tools/secrets_scan.py --history
	$(if $(OSV),$(PYTHON) tools/advisories.py $(OSV),$(<D)/bin/python -m pip_audit --require-hashes --disable-pip -r requirements-dev.lock)

clean:  ## remove .venv, caches and build output
	rm -rf $(VENV) build dist src/holdfast/native .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src bench tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
