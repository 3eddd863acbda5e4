# moe-dispatch: `make demo` measures and decides on this machine, `make test` checks the package.
# Each builds .venv by itself; a stamp keeps the second run quick.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
DEMO_MODEL ?= qwen3-30b-a3b
DEMO_EP ?= 4
DEMO_BUDGET ?= 130
DEMO_OUT ?= moe-dispatch-out/demo
PYTEST_WORKERS ?= 2
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# The stamp carries the torch requirement, so that another TORCH installs again.
STAMP := $(VENV)/.installed-$(subst /,_,$(subst =,-,$(TORCH)))

.PHONY: help install demo test lint format clean

help:
	@echo "make demo    measure $(DEMO_MODEL) with EP $(DEMO_EP) on this machine and write the verdict and the report"
	@echo "make test    ruff, mypy --strict, import rules, pytest"
	@echo "make lint    the same without pytest"
	@echo "make format  ruff format and the fixes that ruff can make"
	@echo "make clean   remove $(VENV) and caches"
	@echo "options: PYTHON=python3.12  TORCH=torch==2.11.0  VENV=.venv  DEMO_MODEL=...  DEMO_EP=...  PYTEST_ARGS='-k store'"

install: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "moe-dispatch needs Python 3.10 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	  echo "  fix: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH), moe-dispatch and its tools into $(VENV) (once)"
	@$(PIP) install '$(TORCH)'
	@$(PIP) install -e '.[torch,report,dev]'
	@rm -f $(VENV)/.installed-*
	@touch $@

demo: $(STAMP)
	@rm -f $(DEMO_OUT)/verdict.json
	@$(BIN)/moe-dispatch select $(DEMO_MODEL) --ep $(DEMO_EP) --budget $(DEMO_BUDGET) --out $(DEMO_OUT) || test -s $(DEMO_OUT)/verdict.json

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
