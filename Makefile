# `make help` says what there is. Everything lives in .venv, made from requirements.lock; nothing is
# installed elsewhere. PYTHON is the interpreter the environment is made with.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PYTEST = $(PY) -m pytest --numprocesses=$(TEST_JOBS)
PIP := $(PY) -m pip --disable-pip-version-check --require-virtualenv

ROWS ?= 2000000
SEED ?= 1
RUN ?= data/criteo-$(ROWS)
LOGS := $(RUN)/logs/clicks.tsv.gz
DATASET := $(RUN)/dataset/_dataset.json
TRAIN_FLAGS ?=
# Processes that run tests. Many tests wait for other processes: one more than there are cores.
TEST_JOBS ?= $(shell nproc)
PYTEST_FLAGS ?=
BENCH_FLAGS ?=

# Another project's modules must not shadow ours or the environment's.
unexport PYTHONPATH
unexport PYTHONHOME

.DELETE_ON_ERROR:
.PHONY: help env kernels train test test-slow test-all lint format types thread-safety sanitize docs bazel bench bench-micro lock clean check-tools
.DEFAULT_GOAL := help

help: ## say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15
	@echo
	@echo 'Variables: PYTHON=$(PYTHON) ROWS=$(ROWS) SEED=$(SEED) RUN=$(RUN) TRAIN_FLAGS TEST_JOBS=$(TEST_JOBS)'
	@echo '  PYTEST_FLAGS BENCH_FLAGS'

train: env kernels $(DATASET) ## generate click logs, write Parquet, train DLRM, print its scores
	$(PY) -m embedps.train --model dlrm --data $(RUN)/dataset --model-dir $(RUN)/model $(TRAIN_FLAGS)

test: env kernels ## run the quick tests, which train on a local cluster too
	$(PYTEST) -m 'not slow' $(PYTEST_FLAGS)

test-slow: env kernels ## run the tests that `make test` leaves out
	$(PYTEST) -m slow $(PYTEST_FLAGS)

test-all: test test-slow ## run every test (real samples: EMBEDPS_SAMPLES=DIR)

lint: env ## check style, spelling and imports, as .pre-commit-config.yaml says
	PRE_COMMIT_HOME=$(VENV)/pre-commit $(VENV)/bin/pre-commit run --all-files

format: env ## rewrite sources in the project's style
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	git ls-files -- '*.cc' '*.h' | xargs -r $(VENV)/bin/clang-format -i

types: env ## check types: mypy, strict
	$(VENV)/bin/mypy

thread-safety: env ## check what each lock of the kernels guards: Clang's analysis
	$(PY) -m tools.thread_safety

sanitize: env ## run the C++ tests under ASan + UBSan and under TSan
	$(PY) -m tools.sanitize

docs: env ## build the site of docs/ into build/site, and refuse any broken link
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

bazel: env kernels ## build and test with Bazel (bazel or Debian's bazel-bootstrap on the PATH)
	tools/bazel_test $(abspath $(PY))

bench: env kernels ## measure training beside the peers, and write docs/performance.md
	$(PY) -m benchmarks run --suite train --peers tf,tf-ps,torchrec,dlrm $(BENCH_FLAGS)
	$(PY) -m benchmarks docs

bench-micro: env kernels ## measure single kernels
	$(PY) -m pytest benchmarks/micro -q --benchmark-json=benchmarks/results/micro.json
	$(PY) -m benchmarks docs

lock: env ## resolve requirements.lock anew from pyproject.toml, with pip's configured index
	tools/lock $(PY)

clean: ## remove what was built and generated, but not .venv
	rm -rf build dist *.egg-info embedps/kernels/_build embedps/kernels/_embedps.so data
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

env: check-tools $(VENV)/.installed ## make .venv and install the package into it
kernels: env ## compile the C++ kernels, where they changed
	@$(PY) -m embedps.kernels.build >/dev/null

check-tools:
	@command -v $(PYTHON) >/dev/null || \
	  { echo 'make: needs Python 3.11 to 3.13, and `$(PYTHON)` is not on the PATH: set PYTHON'; exit 1; } >&2
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; ok = (3, 11) <= v < (3, 14); ok or print( \
	  "make: TensorFlow 2.21 needs Python 3.11 to 3.13, and $(PYTHON) is %d.%d: " % v \
	  + "run make PYTHON=python3.12"); sys.exit(not ok)' >&2
	@command -v $(CXX) >/dev/null || \
	  { echo 'make: needs a C++20 compiler, and `$(CXX)` is not on the PATH: install g++ or set CXX'; exit 1; } >&2

# In two steps, so that a change to the package's metadata does not fetch its dependencies again.
$(VENV)/.dependencies: requirements.lock
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo 'make: `$(PYTHON) -m venv` failed: install the venv module (Debian: python3-venv)' >&2; exit 1; }
	@echo 'make: installing the packages of requirements.lock into $(VENV) (some 760 MB to download)'
	@$(PIP) install --quiet --require-hashes -r requirements.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.dependencies pyproject.toml setup.py
	@echo 'make: building the kernels and installing embedps into $(VENV)'
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(LOGS): | env kernels
	$(PY) -m pipelines.generate --rows $(ROWS) --seed $(SEED) --output $@

$(DATASET): $(LOGS) | env kernels
	$(PY) -m pipelines.criteo --input '$(RUN)/logs/*.tsv.gz' --output $(RUN)/dataset --num-shards 8
