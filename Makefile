# Everything sets itself up from nothing but python3 and make: virtual environment, install, run.
# A second call does not install again: each set of extras leaves a stamp that is newer than what it was made from.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := OMP_NUM_THREADS=$(or $(OMP_NUM_THREADS),2) $(BIN)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
FAST   := not realdata and not thirdparty and not browser and not scale and not slow and not hostile
MADE_FROM := pyproject.toml constraints.txt

.PHONY: docs docs-serve dist dist-try sbom audit demo demo-photos test coverage check format lint types test-slow test-realdata test-thirdparty test-browser test-scale test-hostile test-lowest test-all clean help

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	@touch $@

# TORCH_INDEX may name the index of PyTorch's CPU builds: torch comes from there, and nothing else does, as a package of any other
# name on a second index could take the place of PyPI's.
# stamps: .venv/.installed-EXTRA means that offaxis[EXTRA] is installed as constraints.txt pins it
$(VENV)/.installed-%: $(VENV)/.made $(MADE_FROM)
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install --quiet --index-url $(TORCH_INDEX) --no-deps --constraint constraints.txt torch)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@

demo: $(VENV)/.installed-demo  ## train on embedded digits, score six OOD sets, write one page
	$(RUN)/offaxis demo

demo-photos: $(VENV)/.installed-photos $(VENV)/.installed-serve  ## train on a folder of photographs, bundle, score, write one page
	rm -rf runs/photos-demo
	$(RUN)/python examples/demo_photographs.py runs/photos-demo

test: $(VENV)/.installed-test  ## the fast tests, in two processes
	$(PYTEST) -n 2 --dist worksteal -q -m "$(FAST)"

coverage: $(VENV)/.installed-test  ## line coverage of src by the fast tests, at least 90 %
	rm -f .coverage .coverage.*
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -n 2 --dist worksteal -q -m "$(FAST)"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: format lint types test  ## what CI runs: format, lint, types, then exactly `make test`

format: $(VENV)/.installed-dev  ## is everything formatted?
	$(BIN)/ruff format --check .

lint: $(VENV)/.installed-dev  ## ruff
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev  ## mypy --strict
	$(BIN)/mypy

test-slow: $(VENV)/.installed-test $(VENV)/.installed-notebook $(VENV)/.installed-docs $(VENV)/.installed-photos $(VENV)/.installed-thirdparty  ## tests that take minutes, tutorials and the notebook among them
	$(PYTEST) -q -m slow

test-realdata: $(VENV)/.installed-test  ## tests on real image sets; set OFFAXIS_DATA
	$(PYTEST) -q -m realdata

test-thirdparty: $(VENV)/.installed-test $(VENV)/.installed-thirdparty  ## networks of timm, torchvision and transformers, Hugging Face datasets
	$(PYTEST) -q -m thirdparty tests

test-scale: $(VENV)/.installed-test $(VENV)/.installed-scale  ## batch scoring on a local Ray
	$(PYTEST) -q -m scale

test-browser: $(VENV)/.installed-test $(VENV)/.installed-browser $(VENV)/.installed-docs  ## pages in a real browser (needs chromium)
	$(PYTEST) -q -m browser

test-hostile: $(VENV)/.installed-hostile  ## fuzzers and kills at random moments; OFFAXIS_FUZZ=10 tries ten times as much
	$(PYTEST) -q -m hostile

test-all: test test-slow test-hostile test-realdata test-thirdparty test-browser test-scale  ## every tier

# in an environment of its own: the lowest versions that pyproject.toml admits. Old packages beside newer ones of others warn.
LOWEST := .venv-lowest
test-lowest:  ## the fast tests with the lowest versions that are declared
	$(PYTHON) -m venv $(LOWEST)
	$(if $(TORCH_INDEX),$(LOWEST)/bin/python -m pip install --quiet --index-url $(TORCH_INDEX) --no-deps $(TORCH))
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints-lowest.txt --editable '.[test]'
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 2 --dist worksteal -q -o filterwarnings=default -m "$(FAST)"

docs: $(VENV)/.installed-docs  ## build the site into site/; a warning, a broken link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

docs-serve: $(VENV)/.installed-docs  ## show the site at http://127.0.0.1:8001 while pages are edited
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8001

# tools of a release, in an environment of their own: they need nothing of offaxis
TOOLS := .venv-tools
$(TOOLS)/.made: constraints.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --constraint constraints.txt build twine cyclonedx-bom pip-audit
	@touch $@

# What is released: built, checked, and tried in two new environments without extras, with the newest and the lowest versions.
# PyTorch alone is the pinned one in both: newer builds for Linux bring gigabytes of CUDA. `make dist TORCH=torch` has the newest.
TORCH := $(shell grep '^torch==' constraints.txt)
dist: $(TOOLS)/.made  ## build wheel and sdist, check them, try the wheel with the newest and the lowest versions
	rm -rf dist build
	$(TOOLS)/bin/python -m build --quiet --outdir dist
	$(TOOLS)/bin/twine check --strict dist/*
	$(TOOLS)/bin/python scripts/check_dist.py dist
	$(MAKE) dist-try TRY=newest
	$(MAKE) dist-try TRY=lowest CONSTRAINT="--constraint constraints-lowest.txt"

TRIED = $(CURDIR)/.venv-dist-$(TRY)
dist-try:
	rm -rf $(TRIED)
	$(PYTHON) -m venv $(TRIED)
	$(if $(TORCH_INDEX),$(TRIED)/bin/python -m pip install --quiet --index-url $(TORCH_INDEX) --no-deps $(TORCH))
	$(TRIED)/bin/python -m pip install --quiet --no-compile $(CONSTRAINT) $(TORCH) dist/*.whl
	cd $$(mktemp -d) && OMP_NUM_THREADS=2 $(TRIED)/bin/offaxis demo --quick --quiet && \
	  OMP_NUM_THREADS=2 $(TRIED)/bin/python $(CURDIR)/scripts/smoke.py
	rm -rf $(TRIED)

sbom: $(TOOLS)/.made  ## what the pinned tree consists of, as a CycloneDX document: dist/sbom.json
	@mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --output-format JSON \
	  --output-file dist/sbom.json constraints.txt
	$(PYTHON) scripts/complete_sbom.py dist/sbom.json

audit: $(TOOLS)/.made  ## known vulnerabilities of the pinned versions; needs the network, and fails where a package is not checked
	$(TOOLS)/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip --progress-spinner off

clean:  ## remove the environment and everything that was made
	rm -rf $(VENV) $(LOWEST) $(TOOLS) .venv-dist-* site demo .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
