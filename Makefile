# On a fresh machine with python3 (3.10 or newer) and its venv module, `make demo` and `make test`
# do all of the set-up themselves.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
LINE_BUDGET := 9500

.PHONY: demo test tiny lint format size bench clean

demo: $(INSTALLED)  ## train, compile, predict, compare
	$(BIN)/tvm-forest demo

test: lint size  ## everything that CI checks
	$(BIN)/pytest -n 2

tiny: $(INSTALLED)  ## the fast tests, under 10 s
	$(BIN)/pytest -q -n 2 -m "not slow and not gpu"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

size:  ## the package stays small enough to be read
	@lines=$$(find tvm_forest -name '*.py' -exec cat {} + | wc -l); \
	echo "tvm_forest: $$lines lines of at most $(LINE_BUDGET)"; \
	test $$lines -le $(LINE_BUDGET)

bench: $(INSTALLED)
	$(BIN)/python benchmarks/first_figure.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[test,lint]'
	touch $@
