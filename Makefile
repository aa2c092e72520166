# Two commands on a fresh clone do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow lint docs setup lock clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

demo: $(READY)  ## the main job: ASHA over a small network on handwritten digits
	@$(BIN)/hpo tune examples/digits/study.yaml --name digits-$$(date +%Y%m%d-%H%M%S)

test: $(READY) lint
	$(BIN)/python -m pytest

test-slow: $(READY)  ## deployments, retraining, two machines, every method killed for real
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)  ## the documentation site, in site/ (open site/index.html, or for its search: mkdocs serve)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

lock:  ## pin what is installed now (the +cpu of a local torch build is no version others can install)
	$(BIN)/python -m pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/^\(torch==[0-9.]*\)+.*/\1/' > requirements.lock

clean:
	rm -rf $(VENV) .hpo site .mypy_cache .ruff_cache .pytest_cache
