# Everything is set up in .venv on first use; only Python 3.11 or newer and make are needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test thorough all quick lint style types core bench docs clean

demo: $(VENV)/run.stamp
	$(BIN)/python examples/tune_matmul.py

# Types are checked beside the tests: the first time, that takes one core a minute. Three processes
# run tests, because some of these wait.
test: style
	@$(MAKE) --no-print-directory -j2 types all

# Several times as many random cases of each family: for nights and releases, about an hour.
thorough: export TILESMITH_THOROUGH = 1
thorough: all

all: $(VENV)/test.stamp
	$(BIN)/python -m pytest tests -n 3 --dist worksteal

# While you work: style, types of what changed since the last time, and the tests of tests/core.txt.
quick: style
	@$(MAKE) --no-print-directory -j2 types core

lint: style types

style: $(VENV)/test.stamp
	$(BIN)/ruff check tilesmith tilesmith_contest tests bench examples docs
	$(BIN)/ruff format --check tilesmith tilesmith_contest tests bench examples docs

types: $(VENV)/test.stamp
	$(BIN)/mypy

core: $(VENV)/test.stamp
	$(BIN)/python -m pytest @tests/core.txt -n 2 --dist worksteal

bench: $(VENV)/bench.stamp
	$(BIN)/python -m bench.kernels

docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: $(VENV)/bin/python pyproject.toml
	@echo "Installing Tilesmith and what it runs on into $(VENV): NumPy, LLVM, XGBoost, SQLAlchemy (about 150 MB)"
	$(PIP) -e .
	touch $@

$(VENV)/test.stamp: $(VENV)/bin/python pyproject.toml
	@echo "Installing Tilesmith and what its tests use into $(VENV): pytest, ruff, mypy, and PyTorch, ONNX Runtime,"
	@echo "SciPy and matplotlib to compare with (about 600 MB; several GB where PyTorch comes with CUDA)"
	$(PIP) -e '.[test]'
	touch $@ $(VENV)/run.stamp

$(VENV)/bench.stamp: $(VENV)/bin/python pyproject.toml
	@echo "Installing Tilesmith and the libraries it is compared with into $(VENV): PyTorch, ONNX Runtime (about 600 MB)"
	$(PIP) -e '.[peers]'
	touch $@ $(VENV)/run.stamp

$(VENV)/docs.stamp: $(VENV)/bin/python pyproject.toml
	$(PIP) -e '.[docs]'
	touch $@ $(VENV)/run.stamp

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
