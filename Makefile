# One command per task, the same on a laptop and in CI. Needs only git, Python >= 3.11 and make.
.DELETE_ON_ERROR:
.PHONY: setup demo check test test-long test-all test-again test-slow test-chaos test-hosts test-launchers test-libraries test-versions test-writers package bench docs docs-test clean
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

setup: $(STAMP)
	@:

# .venv is made with the first of these Pythons that is on this machine, or with yours: make setup PYTHON=/path/to/python. If yours is of
# another line than that of .venv, .venv is made anew. The newest tested one comes first, and with it the newest JAX.
PYTHONS ?= 3.13 3.12 3.11 3
ifdef PYTHON
LINE := -c 'import sys; print(*sys.version_info[:2], sys.abiflags)'
ifneq ($(shell "$(PYTHON)" $(LINE)),$(shell $(BIN)/python $(LINE) 2>/dev/null))
OTHER := another-python
.PHONY: $(OTHER)
$(OTHER):
endif
endif

# The stamp is newer than both files while the installed packages are those that they name.
$(STAMP): pyproject.toml constraints.txt $(OTHER)
	@if test -n "$(OTHER)" || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  python="$(PYTHON)"; python="$${python:-$$(.ci/find_python $(PYTHONS))}"; \
	  test -n "$$python" || { echo "make: no Python 3.11 or newer found: install one, or say make PYTHON=/path/to/python" >&2; exit 1; }; \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make: $$python is not Python 3.11 or newer: say make PYTHON=/path/to/python3.13" >&2; exit 1; }; \
	  "$$python" -m venv --clear $(VENV) || exit 1; \
	fi
	@echo "Installing into $(VENV) (once; a minute or two) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/python examples/custom_training.py $(ARGS)

check: setup
	$(BIN)/python -m ruff check --quiet .
	$(BIN)/python -m ruff format --quiet --check .
	$(BIN)/basedpyright --warnings
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest --quiet --doctest-modules src/replicant $(ARGS)

# In three processes, which share the work by files, in the order of their folders: the short ones, of pure, come last and even out the
# end. That is one more than two cores, because many tests wait. One process, for a debugger: .venv/bin/python -m pytest PATH
PROCESSES ?= 3
# Programs that these processes, and those that tests start, compile are kept in a folder of the clone, so that each is compiled once.
test test-long test-again test-slow test-chaos test-hosts test-launchers: export REPLICANT_COMPILATION_CACHE ?= $(CURDIR)/build/programs
# The processes that tests start share the byte code, even where Python is told not to keep it.
PYTHON_OF_TESTS := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python
PYTEST := $(PYTHON_OF_TESTS) -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder
test: setup
	@mkdir -p build
	$(PYTEST) -m 'not long' $(ARGS)

# Tests that take some seconds each; together, they take longer than those of `make test`. SHARE=2/3 runs the second of three shares of
# the files. CI runs as many shares as there is time for.
ifdef SHARE
test-long test-again test-slow test-chaos test-versions: export REPLICANT_TEST_SHARE := $(SHARE)
endif
test-long: setup
	@mkdir -p build
	$(PYTEST) -m long $(ARGS)

# What `make test` leaves out, in four parts; `make --keep-going test-all` does not stop at the first that fails.
test-all: test-long test-again test-slow test-chaos

# The tests of numbers once more, with programs that are compiled as users compile them, not quickly.
test-again: export REPLICANT_TEST_AGAIN := 1
test-again test-slow test-chaos: export REPLICANT_TEST_SLOW := 1
test-again: setup
	@mkdir -p build
	$(PYTEST) -m again $(ARGS)

# Long tests, and further cases of others.
CHAOS := tests/faults tests/processes/test_two_hosts.py
test-slow: setup
	@mkdir -p build
	$(PYTEST) -m 'slow and not again' $(foreach path,$(CHAOS) tests/hosts tests/launchers,--ignore $(path)) $(ARGS)

# Processes are killed and links cut at random moments, RUNS times in each test, with a new seed each time. The end of the output
# names it, and REPLICANT_TEST_SEED repeats it. One process at a time, because these tests look at how long others wait.
RUNS ?= 2
test-chaos: export REPLICANT_TEST_RUNS := $(RUNS)
test-chaos: setup
	$(PYTHON_OF_TESTS) -m pytest --timeout 7200 -m 'slow and not again' $(CHAOS) $(ARGS)

# Jobs on several hosts, which are Linux namespaces of this machine: links are cut, and hosts die. Each row of the table is a test.
test-hosts: export REPLICANT_TEST_SLOW := 1
test-hosts: setup
	@mkdir -p build
	$(PYTHON_OF_TESTS) -m pytest --numprocesses $(PROCESSES) --dist load tests/hosts $(ARGS)

# Two processes of each real launcher that is on this machine (MPICH, Intel MPI, Open MPI, PRRTE, torchrun, Ray Train, Spark, Slurm). The
# first run installs those that the index has into build/launchers; tests/launchers/_install.py names the packages of Debian.
test-launchers: export REPLICANT_TEST_SLOW := 1
test-launchers: export REPLICANT_TEST_LAUNCHERS := 1
test-launchers: setup
	@mkdir -p build
	@$(BIN)/python tests/launchers/_install.py
	$(PYTHON_OF_TESTS) -m pytest tests/launchers $(ARGS)

# Libraries that are built on Keras and JAX, in an environment of their own with exactly these packages. docs/libraries.md has the table.
LIBRARIES := build/libraries
$(LIBRARIES)/.installed: tests/libraries/requirements.txt
	@python="$$(.ci/find_python 3.13)"; test -n "$$python" || { echo "make: test-libraries needs Python 3.13" >&2; exit 1; }; \
	  echo "Installing into $(LIBRARIES) (once; some minutes) ..."; "$$python" -m venv --clear $(LIBRARIES)
	@$(LIBRARIES)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	@touch $@

test-libraries: export REPLICANT_TEST_LIBRARIES := 1
test-libraries: export REPLICANT_COMPILATION_CACHE ?= $(CURDIR)/build/programs
test-libraries: export PYTHONPATH := src
test-libraries: $(LIBRARIES)/.installed
	$(LIBRARIES)/bin/python -m pytest --numprocesses 2 --durations 0 --durations-min 60 tests/libraries $(ARGS)

# The core of the suite with each of these Pythons that is here and the JAX that belongs to it, and the tests of Keras with each of these
# versions of Keras. A table comes last. The first run installs them into build/versions.
VERSIONS ?= 3.11 3.12 3.13
KERAS ?= 3.12.0 3.13 3.14
test-versions: setup
	@$(PYTHON_OF_TESTS) tests/versions.py $(VERSIONS) --keras $(KERAS) --pytest $(ARGS)

# Files as other libraries write them, each read as its own library reads it, or refused: docs/formats.md. The first run installs these
# libraries into two environments in build: 4 GB, and 7 GB for MosaicML's streaming, which needs PyTorch.
WRITERS := tests/writers
WRITERS_PYTHON = $$(.ci/find_python $(PYTHONS))
build/writers/.installed: $(WRITERS)/requirements.txt pyproject.toml
	@test -x build/writers/bin/python || $(WRITERS_PYTHON) -m venv build/writers
	build/writers/bin/python -m pip install --quiet --disable-pip-version-check --requirement $< --editable .
	@touch $@
build/writers-streaming/.installed: $(WRITERS)/requirements-streaming.txt
	@test -x build/writers-streaming/bin/python || $(WRITERS_PYTHON) -m venv build/writers-streaming
	build/writers-streaming/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@
test-writers: build/writers/.installed build/writers-streaming/.installed
	build/writers/bin/python -m pytest -c $(WRITERS)/pytest.ini --rootdir . --confcutdir $(WRITERS) $(WRITERS) $(ARGS)

# The sdist and the wheel, in dist, and a try of the wheel in an empty environment. It downloads what the wheel needs.
package: setup
	@.ci/package $(ARGS)

bench: setup
	@$(BIN)/python benchmarks/run.py $(ARGS)

# The site in build/site; a warning is an error. Its packages are installed when they are first needed.
$(VENV)/.docs: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs]'
	@touch $@

docs: $(VENV)/.docs
	@cd docs && ../$(BIN)/python rooms.py --draw
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Every Python block of every page, the transcripts, the site.
docs-test: $(VENV)/.docs
	REPLICANT_TEST_SLOW=1 $(BIN)/python -m pytest tests/processes/test_docs.py tests/pure/test_docs_transcripts.py $(ARGS)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
