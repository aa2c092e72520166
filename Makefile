# Two commands on a fresh clone do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow lint docs notebooks pictures setup lock lock-slow clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

demo: $(READY)  ## the main job: ASHA over a small network on handwritten digits
	@$(BIN)/hpo tune examples/digits/study.yaml --name digits-$$(date +%Y%m%d-%H%M%S)

test test-slow: export PYTHONDONTWRITEBYTECODE =  # hundreds of processes would compile the project anew

test: $(READY) lint
	$(BIN)/python -m pytest

test-slow: $(VENV)/.ready-for-all  ## all tests: slow ones, browser, every extra; a skip that is not stated fails
	$(BIN)/python -m pytest -n 2 -m "not browser and not alone" --stated-skips
	$(BIN)/python -m pytest -n 0 -m "browser or alone" --stated-skips

$(VENV)/.ready-for-all: $(READY) tests/requirements-slow.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock -r tests/requirements-slow.lock
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)  ## the documentation site, in site/ (open site/index.html, or for its search: mkdocs serve)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(VENV)/.ready-for-all  ## the report's picture in README and docs, anew (Chromium; two minutes)
	$(BIN)/python docs/hooks/report_pictures.py

notebooks: $(READY)  ## the outputs of examples/notebook, anew (ten minutes)
	$(BIN)/python docs/hooks/notebooks.py

lock:  ## pin what is installed now (the +cpu of a local torch build is no version others can install)
	$(BIN)/python -m pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/^\(torch==[0-9.]*\)+.*/\1/' > requirements.lock

lock-slow: $(READY)  ## pin what tests/requirements-slow.in adds to requirements.lock
	$(BIN)/python -m pip install --quiet -r tests/requirements-slow.in -c requirements.lock
	$(BIN)/python -m pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/^\(torch==[0-9.]*\)+.*/\1/' | grep -vxFf requirements.lock > tests/requirements-slow.lock

clean:
	rm -rf $(VENV) .hpo site .mypy_cache .ruff_cache .pytest_cache
