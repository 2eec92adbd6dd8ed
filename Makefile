# make demo   train, quantize, compile and run a digit classifier on the simulated NPU
# make test   ruff, mypy and the tests
# Both create .venv and install what they need on the first call, and again when pyproject.toml has changed.

.PHONY: demo test test-long bench clean
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin

# The first of these that is Python >= 3.10 and can make an environment with pip in it.
PYTHONS := python3.11 python3.12 python3.10 python3
PYTHON = $(shell for p in $(PYTHONS); do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)

# Only benchmarks and whole-model tests want torchvision. Its wheels name an exact torch build, so that pip would replace
# the installed one: --no-deps, and bench/models.py copes where its compiled extension then does not load.
TORCHVISION := torchvision==0.28.*

demo: $(VENV)/demo.stamp
	$(BIN)/python examples/digits.py $(ARGS)

test: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy ethorch bench examples
	$(BIN)/python -m pytest -n 2 $(ARGS)

test-long: $(VENV)/test.stamp
	$(BIN)/python -m pytest -n 2 -m long $(ARGS)

bench: $(VENV)/test.stamp
	$(BIN)/python -m bench.compile $(ARGS)
	$(BIN)/python -m bench.simulate $(ARGS)

clean:
	rm -rf $(VENV) build demo_out .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.10 with the venv and ensurepip modules among: $(PYTHONS)." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV); the first time takes a few minutes ..." >&2
	$(BIN)/python -m pip install --quiet -e ".[demo]"
	@touch $@

$(VENV)/test.stamp: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV); the first time takes a few minutes ..." >&2
	$(BIN)/python -m pip install --quiet -e ".[test]" pillow
	$(BIN)/python -m pip install --quiet --no-deps "$(TORCHVISION)"
	@touch $@
