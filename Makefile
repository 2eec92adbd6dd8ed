# make demo   train, quantize, compile and run a digit classifier on the simulated NPU
# make demo-firmware  the same as firmware: an ELF that classifies the digits on a virtual board
# make demo-llm  train a small language model, compile it, and let the simulated NPU write
# make check  lint, format, import rules, types and a cross-section of the tests
# make test   the same with all tests but the long ones
# make test-versions  what touches ExecuTorch, Vela and TOSA, with the oldest and the newest releases that pyproject.toml allows
# make docs   the documentation as a site, in site/
# make hooks  have git run lint, format, import rules and types before each commit
# Each creates .venv and installs what it needs on the first call, and again when pyproject.toml has changed.

.PHONY: demo demo-firmware demo-llm docs check test test-long test-versions test-oldest test-newest lint bench hooks clean
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
# A thread for each of the processes: torch would start one for each core in each of them. Bytecode is kept, since tests start
# processes that would compile all modules again.
# Each takes a contiguous part of the tests, so that few modules have their fixtures made twice.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=40 --durations-min=5

# The first of these that is Python >= 3.10 and can make an environment with pip in it.
PYTHONS := python3.11 python3.12 python3.10 python3
PYTHON = $(shell for p in $(PYTHONS); do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)

# Only benchmarks and whole-model tests want torchvision. Its wheels name an exact torch build, so that pip would replace
# the installed one: --no-deps, and bench/models/vision.py copes where its compiled extension then does not load.
TORCHVISION := torchvision==0.28.*

demo: $(VENV)/demo.stamp
	$(BIN)/python examples/digits.py $(ARGS)

demo-firmware: $(VENV)/demo.stamp
	$(BIN)/python examples/firmware.py $(ARGS)

demo-llm: $(VENV)/demo.stamp
	$(BIN)/python examples/story.py $(ARGS)

check: $(VENV)/test.stamp
	@echo "make check takes under two minutes on two idle cores."
	@$(MAKE) --no-print-directory lint
	$(PYTEST) -q -m core $(ARGS)

test: $(VENV)/test.stamp
	@echo "make test takes about 15 minutes on two cores; with more, JOBS=N has it run N tests at once."
	@$(MAKE) --no-print-directory lint
	$(PYTEST) $(ARGS)

test-long: $(VENV)/zoo.stamp
	@echo "make test-long takes hours."
	$(PYTEST) -m long $(ARGS)

# tests/versions/NAME.txt has the releases of each; the environment is .venv-NAME.
VERSION_TESTS := tests/backend/test_build.py tests/support/test_versions.py tests/backend/test_retry.py tests/backend/test_tosa_output.py \
	tests/runtime/test_building.py tests/runtime/test_interrupts.py tests/runtime/test_programs.py tests/vela/test_compiler.py

test-versions: test-oldest test-newest

test-oldest test-newest: test-%: .venv-%/test.stamp
	.venv-$*/bin/python -m pytest -n 2 $(VERSION_TESTS) $(ARGS)

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# The site, in site/. Its pages' code runs in `make test`.
docs: $(VENV)/test.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# A wheel that brings the simulator's compiled code along; docs/wheels.md says in which container it is built.
PLATFORM ?= linux_x86_64
wheel: $(VENV)/test.stamp
	rm -rf build ethorch/prebuilt
	CXX="g++ -static-libstdc++ -static-libgcc" $(BIN)/python -m ethorch.npu.prebuild ethorch/prebuilt
	$(BIN)/pip wheel --no-deps -w dist --config-settings=--build-option=--plat-name=$(PLATFORM) .
	rm -rf ethorch/prebuilt

hooks: $(VENV)/test.stamp
	$(BIN)/pre-commit install

bench: $(VENV)/test.stamp
	$(BIN)/python -m bench.compile $(ARGS)
	$(BIN)/python -m bench.simulate $(ARGS)

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest build dist demo_out story_out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.10 with the venv and ensurepip modules among: $(PYTHONS)." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV): the first time pip downloads about 0.5 GB, most of it PyTorch, and unpacks 1.8 GB; a few minutes." >&2
	$(BIN)/python -m pip install -e ".[demo,firmware,language]" >&2
	@touch $@

$(VENV)/test.stamp: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV): the first time pip downloads some 0.6 GB and unpacks 2 GB; a few minutes." >&2
	$(BIN)/python -m pip install --quiet -e ".[test]"
	$(BIN)/python -m pip install --quiet --no-deps "$(TORCHVISION)"
	@touch $@

# Networks of the long tests, without their dependencies: those name other builds of torch.
ZOO := diffusers==0.42.1 segmentation-models-pytorch==0.6.0 torch_geometric==2.8.1 ultralytics==8.4.190 timm==1.0.31 xxhash \
	opencv-python-headless polars polars-runtime-32 importlib_metadata zipp

$(VENV)/zoo.stamp: $(VENV)/test.stamp
	$(BIN)/python -m pip install --quiet --no-deps $(ZOO)
	@touch $@

.venv-%/test.stamp: pyproject.toml tests/versions/%.txt
	@test -n "$(PYTHON)" || { echo "No Python >= 3.10 with the venv and ensurepip modules among: $(PYTHONS)." >&2; exit 1; }
	@echo "Installing into .venv-$*; the first time takes a few minutes ..." >&2
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet -c tests/versions/$*.txt -e ".[test]"
	@touch $@
