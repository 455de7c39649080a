# One place for every command; CI calls the same targets.
VENV   ?= .venv
PYTHON ?= python3
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
JOBS   ?= 4
SPREAD := -n $(JOBS) --dist worksteal
TYPES  := $(VENV)/types.log

SUITE  := $(PY) -m pytest -p tests.in_groups --in-groups=$(JOBS)
PURE   := tests/wire tests/steering tests/text tests/conversations

# Byte code is kept: the tests start the gateway hundreds of times, and each worker of pytest
# would compile every test module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo serve test test-fast check nightly faults newest-litellm bench bench-instructions evidence reference docs pictures release lock fix cover clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | awk -F':.*?## ' '{printf "  make %-18s %s\n", $$1, $$2}'

$(STAMP): requirements.lock pyproject.toml packages/steering-gateway-testing/pyproject.toml
	@$(PYTHON) scripts/install.py $(VENV) all
	@touch $@

# Parts of the lock file, for those who only use the gateway: each command installs what it lacks.
$(VENV)/.gateway: requirements.lock pyproject.toml
	@$(PYTHON) scripts/install.py $(VENV) gateway
	@touch $@

$(VENV)/.demo: requirements.lock packages/steering-gateway-core/pyproject.toml
	@$(PYTHON) scripts/install.py $(VENV) demo
	@touch $@

install: $(VENV)/.gateway ## set up .venv with the gateway, and put `gateway` on the path (idempotent)
	@$(PYTHON) scripts/install.py $(VENV) --link

demo: $(VENV)/.demo ## watch a steered agent run, offline, no key needed
	@$(PY) -m gateway demo

serve: $(VENV)/.gateway ## start the gateway on 127.0.0.1:8080
	@$(PY) -m gateway serve

test: $(STAMP) ## the test suite, without the slow and nightly tests
	@$(SUITE) -m "not slow and not nightly"

test-fast: $(STAMP) ## the tests of the pure rooms alone: under a minute of processor time
	@$(PY) -m pytest $(SPREAD) -m "not slow and not nightly" $(PURE)

# The types and the contracts are checked beside the tests, and heard of only when they fail.
check: $(STAMP) ## what CI runs: lint, types, structure, all but the nightly tests
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/codespell gateway packages lab tests docs README.md CHANGELOG.md
	@$(PY) scripts/house.py --guard
	@{ $(VENV)/bin/mypy && $(VENV)/bin/lint-imports; } > $(TYPES) 2>&1 & types=$$!; \
	$(SUITE) -m "not nightly"; failed=$$?; \
	wait $$types || { cat $(TYPES); failed=1; }; \
	exit $$failed

nightly: newest-litellm ## the longest tests, every property on more examples, the newest LiteLLM
	@$(SUITE) -m "nightly or hypothesis" --hypothesis-profile=nightly
	@$(MAKE) --no-print-directory faults

faults: $(STAMP) ## plant random faults in copies, and count those that the tests notice
	@$(PY) -m scripts.faults --jobs $(JOBS) $(ARGS)

newest-litellm: $(STAMP) ## the tests of the LiteLLM lane with the newest release of LiteLLM
	@$(PY) -m pip install --quiet --upgrade --no-deps --target $(VENV)/newest litellm
	@PYTHONPATH=$(VENV)/newest $(PY) -m pytest $(SPREAD) -m "not nightly" tests/features/litellm

bench: $(STAMP) ## measure this gateway and its peers in one run
	@$(PY) -m bench $(ARGS)

bench-instructions: $(STAMP) ## count instructions a request under valgrind, compare with the budgets
	@$(PY) -m bench.instructions $(ARGS)

evidence: $(STAMP) ## count the tables of docs/evidence.md on the runs that ship
	@$(PY) -m lab alarms tests/replays/sample.jsonl.gz

reference: $(STAMP) ## make docs/reference and the schema of config.yaml from the code
	@$(PY) -m scripts.reference

pictures: $(STAMP) ## make docs/pictures: the demo as SVG, its page by a real browser
	@$(PY) -m scripts.pictures

release: $(if $(DATE),$(STAMP),$(VENV)/release/.installed) ## build what is published, into dist/; with DATE=2026-11-22 first close the changelog
	@$(if $(DATE),$(PY) -m scripts.release "$(DATE)",$(PY) -m scripts.publish $(VENV)/release)

$(VENV)/release/.installed: | $(STAMP)
	@echo "installing cyclonedx-bom into $(VENV)/release"
	@$(PYTHON) -m venv $(VENV)/release
	@$(VENV)/release/bin/pip install --quiet --disable-pip-version-check "cyclonedx-bom>=7,<8"
	@touch $@

docs: $(VENV)/docs/.installed ## build the documentation as a site, strictly
	@NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --quiet --strict --site-dir site
	@$(PY) scripts/check_site.py site
	@echo "built: site/index.html"

# An environment of its own: the site needs nothing that the gateway needs.
$(VENV)/docs/.installed: pyproject.toml | $(STAMP)
	@echo "installing mkdocs-material into $(VENV)/docs"
	@$(PYTHON) -m venv $(VENV)/docs
	@$(VENV)/docs/bin/pip install --quiet --disable-pip-version-check "mkdocs-material>=9.6,<10"
	@touch $@

lock: $(STAMP) ## make requirements.lock anew from pyproject.toml
	@$(PY) -m pip install --quiet --disable-pip-version-check pip-tools
	@$(VENV)/bin/pip-compile --quiet --generate-hashes --allow-unsafe --no-emit-index-url \
		--no-emit-trusted-host --no-emit-find-links --no-header --extra dev --extra lab -o $(CURDIR)/requirements.lock pyproject.toml

fix: $(STAMP) ## format and repair what ruff can
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

cover: $(STAMP) ## tests with branch coverage
	@$(PY) -m pytest $(SPREAD) --cov=gateway --cov-branch --cov-report=term-missing:skip-covered

clean: ## remove everything that can be made again
	@rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
