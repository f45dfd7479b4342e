# Everything from a bare Linux machine with Python >= 3.10 and a C linker:
#
#     make test           every claim once           make lint     style checks
#     make test-deep      20 minutes of the rest     make fmt      formats in place
#     make test-nightly   every test, in hours       make docs     pages, into build/site
#     make bench          speed, into build/bench    make clean    removes .venv and what was built
#
# What tests compile is kept in the user's cache folder, or in MX_KERNELS_CACHE.
# The first call makes .venv and fills it from pyproject.toml (a few minutes);
# it is refreshed when pyproject.toml changes. `PYTHON=python3.12 make test`
# picks another interpreter, ARGS="..." reaches pytest or bench.run, and
# `make bench TARGET=...` measures another device. `make bench ARGS=--record` keeps what it
# measures in bench/results and the benchmark pages of docs.

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: test test-deep test-nightly bench docs lint fmt clean

# One process a core, of one thread: tests of threads ask for more.
PYTEST := OMP_NUM_THREADS=1 python -m pytest -n logical --dist

test: $(READY)
	$(PYTEST) worksteal -m "not deep" $(ARGS)

test-deep: $(READY)
	$(PYTEST) loadfile --no-loadscope-reorder -m deep --minutes 20 $(ARGS)

test-nightly: $(READY)
	$(PYTEST) worksteal --limit 350 $(ARGS)

bench: $(READY)
	python -m bench.run $(if $(TARGET),--target $(TARGET)) $(ARGS)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 python -m mkdocs build --quiet --strict --config-file docs/mkdocs.yml

lint: $(READY)
	.ci/lint

fmt: $(READY)
	.ci/lint --fix

clean:
	rm -rf $(VENV) build dist python/*.egg-info .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = "%d.%d" % sys.version_info[:2]; \
	    sys.exit(sys.version_info < (3, 10) and "Python >= 3.10 is needed, $(PYTHON) is " + v)'
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv --clear $(VENV) \
	    || { echo "$(PYTHON) cannot make a virtual environment (Debian: apt install python3-venv)"; exit 1; }
	@echo "Filling $(VENV) from pyproject.toml: a few minutes, once ..."
	@$(VENV)/bin/pip install -qq --disable-pip-version-check 'pip>=23.1'
	@$(VENV)/bin/pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@
