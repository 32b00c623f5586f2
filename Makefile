# Everything happens in .venv; the stamps in it say what is installed, so that a second call installs nothing.
# PYTHON chooses the interpreter that .venv is made with (3.11 has DGL to compare with; newer ones do without).

PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11, 5))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two pips at once would break the environment.
.NOTPARALLEL:
.PHONY: help quickstart test test-slow test-all short versions lint docs reference gpu gpu-bundle sbom audit constraints clean

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo "  PYTHON=...        interpreter to make .venv with (now: $(or $(PYTHON),none of 3.11.5 or newer found))"

quickstart: $(VENV)/.ready-run  ## Install, run suites/quickstart.yaml, write its report, print the report's path.
	$(BIN)/harness run suites/quickstart.yaml --report

# Three files at a time, because tests wait: for ranks, a browser, a time limit.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.ready-test  ## Install and run the quick tests: a few minutes, each part of the code once.
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.ready-test  ## Run the slow tests: whole runs, faults, clusters, browsers (SHARE=0/6: of a sixth of the files).
	$(PYTEST) -m slow $(if $(SHARE),--share $(SHARE))

test-all: $(VENV)/.ready-test  ## Run all tests, quick and slow.
	$(PYTEST)

# What a plan imports; torch has wheels of gigabytes for most Pythons, and a plan does without.
PLANS := numpy pydantic typer ruamel.yaml rich psutil requests pymetis

short:  ## Install without torch in a place of its own, and plan: whether another Python (PYTHON=...) reads everything.
	@set -e; place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; \
	$(PYTHON) -m venv "$$place/venv"; \
	"$$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(PLANS); \
	"$$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps .; \
	"$$place/venv/bin/python" -W error -m compileall -q -f harness methods tools; \
	cd "$$place"; PATH="$$place/venv/bin:$$PATH"; harness new suite mine; \
	for command in 'suites' 'list methods' 'list models' 'plan quickstart' 'plan mine.yaml'; do \
		harness $$command > said || { cat said; echo "error: harness $$command fails on $$(python --version)" >&2; exit 1; }; \
	done; \
	python -c 'import sys; print("plans on", sys.version.split()[0])'

versions:  ## Try the lowest and the highest versions of dependencies that pyproject.toml allows, each in its own place.
	$(PYTHON) tools/versions.py

lint: $(VENV)/.ready-lint  ## Check style, types, layers, the documentation's links and the product's size.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/budget.py
	$(BIN)/mkdocs build --quiet --site-dir $(abspath $(VENV))/site

docs: $(VENV)/.ready-docs  ## Build the documentation's site: site/index.html.
	$(BIN)/mkdocs build

reference: $(VENV)/.ready-run  ## Renew docs/reference from the code.
	$(BIN)/python -m tools.reference docs/reference

gpu: $(VENV)/.ready-test  ## Gather what a GPU has to show, nine minutes at a time; again goes on (docs/gpu.md).
	$(BIN)/python -m tools.gpu $(if $(DEVICE),--device $(DEVICE))

gpu-bundle: $(VENV)/.ready-run  ## Gather the wheels that a GPU machine without a network lacks, in gpu-bundle/.
	$(BIN)/python -m tools.gpu.bundle $(if $(HAVE),--have $(HAVE))

sbom: $(VENV)/.ready-run  ## Write sbom.json, a CycloneDX bill of what is installed to run (EXTRA=slurm: with an extra's).
	$(BIN)/python -m tools.sbom sbom.json $(if $(EXTRA),--extra $(EXTRA))

# Not in .ci/run: the database is on the network, and what it holds changes while the commit does not.
audit:  ## Look constraints.txt up among known vulnerabilities: asks PyPI of each package, needs the network.
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

constraints:  ## Renew constraints.txt and hashes.txt: a fresh resolution, on Python 3.11 and Linux x86-64.
	@set -e; place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "error: give a Python 3.11: PYTHON=...")'; \
	$(PYTHON) -m venv "$$place/venv"; \
	"$$place/venv/bin/python" -m pip install --ignore-installed --dry-run --report "$$place/report.json" '.[dev]'; \
	echo '# Every version that is shipped or tested with; renewed by `make constraints`, never by hand.' > "$$place/new"; \
	"$$place/venv/bin/python" -c "$$PINS" "$$place/report.json" | LC_ALL=C sort -f >> "$$place/new"; \
	mv "$$place/new" constraints.txt; wc -l constraints.txt; \
	"$$place/venv/bin/python" -m pip install --quiet packaging; \
	"$$place/venv/bin/python" -m tools.hashes constraints.txt hashes.txt

# Local builds (+cpu) are not part of a pin, the project is none of its own dependencies.
define PINS
import json, sys
for item in json.load(open(sys.argv[1]))["install"]:
    name, version = item["metadata"]["name"], item["metadata"]["version"].split("+")[0]
    marker = '; python_version < "3.12"' if name == "dgl" else ""
    if name != "gnn-harness":
        print(f"{name}=={version}{marker}")
endef
export PINS

clean:  ## Remove .venv and what tools left in the tree; results/ and reports/ stay.
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find harness methods tools tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made:
	@$(if $(PYTHON),,echo "error: no Python 3.11.5 or newer on PATH; give one: make PYTHON=/path/to/python" >&2; exit 2)
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.ready-run: EXTRAS :=
$(VENV)/.ready-test: EXTRAS := [test]
$(VENV)/.ready-lint: EXTRAS := [lint]
$(VENV)/.ready-docs: EXTRAS := [docs]
$(VENV)/.ready-%: pyproject.toml constraints.txt | $(VENV)/.made
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.$(EXTRAS)'
	@touch $@
