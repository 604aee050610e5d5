# Everything sets itself up from nothing but python3 and make: virtual environment, install, run.
# A second call does not install again: each set of extras leaves a stamp that is newer than what it was made from.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := OMP_NUM_THREADS=$(or $(OMP_NUM_THREADS),2) $(BIN)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
FAST   := not realdata and not thirdparty and not browser and not scale and not slow and not hostile
MADE_FROM := pyproject.toml constraints.txt

.PHONY: demo demo-photos test coverage check format lint types test-slow test-realdata test-thirdparty test-browser test-scale test-hostile test-lowest test-all clean help

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	@touch $@

# stamps: .venv/.installed-EXTRA means that offaxis[EXTRA] is installed as constraints.txt pins it
$(VENV)/.installed-%: $(VENV)/.made $(MADE_FROM)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@

demo: $(VENV)/.installed-demo  ## train on embedded digits, score six OOD sets, write one page
	$(RUN)/offaxis demo

demo-photos: $(VENV)/.installed-photos  ## the whole way of a folder of photographs: train, bundle, score, one page
	rm -rf runs/photos-demo
	$(RUN)/python examples/demo_photographs.py runs/photos-demo

test: $(VENV)/.installed-test  ## the fast tests, in two processes
	$(PYTEST) -n 2 -q -m "$(FAST)"

coverage: $(VENV)/.installed-test  ## line coverage of src by the fast tests, at least 90 %
	rm -f .coverage .coverage.*
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -n 2 -q -m "$(FAST)"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: format lint types test  ## what CI runs: format, lint, types, then exactly `make test`

format: $(VENV)/.installed-dev  ## is everything formatted?
	$(BIN)/ruff format --check .

lint: $(VENV)/.installed-dev  ## ruff
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev  ## mypy --strict
	$(BIN)/mypy

test-slow: $(VENV)/.installed-test  ## tests that take minutes
	$(PYTEST) -q -m slow

test-realdata: $(VENV)/.installed-test  ## tests on real image sets; set OFFAXIS_DATA
	$(PYTEST) -q -m realdata

test-thirdparty: $(VENV)/.installed-test $(VENV)/.installed-thirdparty  ## networks of timm, torchvision and transformers, Hugging Face datasets
	$(PYTEST) -q -m thirdparty tests

test-scale: $(VENV)/.installed-test $(VENV)/.installed-scale  ## batch scoring on a local Ray
	$(PYTEST) -q -m scale

test-browser: $(VENV)/.installed-test $(VENV)/.installed-browser  ## pages in a real browser (needs chromium)
	$(PYTEST) -q -m browser

test-hostile: $(VENV)/.installed-hostile  ## fuzzers and kills at random moments; OFFAXIS_FUZZ=10 tries ten times as much
	$(PYTEST) -q -m hostile

test-all: test test-slow test-hostile test-realdata test-thirdparty test-browser test-scale  ## every tier

# in an environment of its own: the lowest versions that pyproject.toml admits. Old packages beside newer ones of others warn.
LOWEST := .venv-lowest
test-lowest:  ## the fast tests with the lowest versions that are declared
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints-lowest.txt --editable '.[test]'
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 2 -q -o filterwarnings=default -m "$(FAST)"

clean:  ## remove the environment and everything that was made
	rm -rf $(VENV) $(LOWEST) demo .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
