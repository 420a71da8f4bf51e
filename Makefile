VENV := .venv
PYTHON := $(VENV)/bin/python

.PHONY: test check setup
.DEFAULT_GOAL := test

test: check  ## every check and every test
	$(PYTHON) -m pytest

check: setup  ## formatting, lint, types, and README's tables
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) benchmarks/report.py --check

setup: $(VENV)/installed  ## a virtual environment with everything in it

$(VENV)/installed: pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --upgrade pip
	$(PYTHON) -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@
