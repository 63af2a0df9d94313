# On a fresh machine with python3 (3.10 or newer) and its venv module, `make demo` and `make test`
# do all of the set-up themselves.

PYTHON ?= python3
BIN := .venv/bin
TOOLS := build/tools/bin
INSTALLED := .venv/installed

.PHONY: demo test test-all test-full tiny lint format size coverage mutants golden differential sweep schedules referees catboost fuzz sanitize test-aarch64 test-windows test-bindings language gpu-recipes bench bench-full bench-layouts bench-schedules bench-search bench-tiling bench-gpu studies gpu-code gpu-cycles notebooks docs dist install-matrix sbom release release-check clean

demo: $(INSTALLED)  ## train, compile, predict, compare
	$(BIN)/tvm-forest demo

test: lint size  ## style, types, size and the tests
	$(BIN)/pytest -n 2 --dist worksteal

test-all: lint size  ## and the long tests, which hold the same on more models, seeds and schedules
	$(BIN)/pytest -n 2 --dist worksteal -m "not gpu and not rare"

test-full: test-all  ## and the rare ones: every case that there is, before a release
	$(BIN)/pytest -n 2 --dist worksteal -m "rare and not gpu"

tiny: $(INSTALLED)  ## the fast tests, about two minutes on 2 cores
	$(BIN)/pytest -q -n 2 -m "not slow and not gpu and not long and not rare"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

size: $(INSTALLED)  ## lines of code of each room beside its budget in ARCHITECTURE.md
	$(BIN)/python tools/code_size.py

coverage: $(INSTALLED)  ## lines and branches that the tests reach, by room; goes on in build/coverage
	$(BIN)/pip install --quiet --editable '.[test,coverage,torch]'
	$(BIN)/python tools/coverage_rooms.py

mutants: $(INSTALLED)  ## small faults in the code that the tests should notice; goes on in build/mutants.json
	$(BIN)/python tools/mutants.py

golden: $(INSTALLED)  ## write the golden texts anew; git shows what has changed
	$(BIN)/python tests/helpers/recipe_cases.py
	$(BIN)/python tests/helpers/chosen_schedules.py
	$(BIN)/python tests/helpers/viz_cases.py
	$(BIN)/python tools/support_page.py
	$(BIN)/python tools/internals_page.py
	$(BIN)/python tools/site_pages.py

differential: $(INSTALLED)  ## every model beside its library on 4,000 rows; writes docs/exactness.md
	$(BIN)/python tools/differential.py --json build/differential.json
	$(BIN)/python tools/exactness_page.py build/differential.json

sweep: $(INSTALLED)  ## 500 models of each library, drawn from a seed; goes on in build/sweep.json
	$(BIN)/python tools/sweep.py --models 500 --json build/sweep.json

schedules: $(INSTALLED)  ## 2,000 random schedules for CPUs and 500 for GPUs; goes on in build/random_schedules.json
	$(BIN)/python tools/random_schedules.py --schedules 2000 --simt 500 --each 50 --json build/random_schedules.json

referees: $(INSTALLED)  ## kernels by PoCL: all defaults, recipes over all layouts, 300 drawn schedules
	$(BIN)/python tools/referees.py 300

catboost: $(INSTALLED)  ## CatBoost's losses, trees and statistics: margins on 10,000 hard rows, values on 100,000
	$(BIN)/python tools/catboost_configurations.py
	$(BIN)/python tools/catboost_configurations.py --values

fuzz: $(INSTALLED)  ## a million damaged inputs at every door; goes on in build/fuzz.json
	$(BIN)/python tools/fuzz.py --inputs 1000000 --seed 1 --json build/fuzz.json

sanitize: $(INSTALLED)  ## exported C under sanitizers of gcc or clang; counts in build/sanitize.json
	$(BIN)/python tools/sanitize.py --json build/sanitize.json

test-aarch64: $(INSTALLED)  ## features and fast tests on AArch64 by qemu-user, as root; see the script
	PYTHON="$(CURDIR)/$(BIN)/python" sh tools/run_on_aarch64.sh build/aarch64

test-windows: $(INSTALLED)  ## the same with CPython for Windows under wine; see the script
	PYTHON="$(CURDIR)/$(BIN)/python" sh tools/run_on_windows.sh build/windows

test-bindings: $(INSTALLED)  ## packages of all languages for which there is a compiler, each with its own tests
	$(BIN)/pytest -q -rs tests/exporting/test_bindings.py tests/exporting/test_plain_c.py -m "not gpu"

language: $(INSTALLED)  ## every directive on real models: equal, or how far from the bound
	$(BIN)/python -m benchmarks rewrites.language

gpu-recipes: $(INSTALLED)  ## every recipe for GPUs in every layout on real models, on the CPU
	$(BIN)/python -m benchmarks gpu.recipes

bench: $(INSTALLED)  ## beside other engines: few models and batches, 1 and 2 threads; in build/cpu
	$(BIN)/pip install --quiet --editable '.[bench]'
	$(BIN)/python -m benchmarks cpu --short --out build/cpu

bench-full: $(INSTALLED)  ## all models, batches and engines; over an hour, on a quiet machine
	$(BIN)/pip install --quiet --editable '.[bench,bench-nvforest]'
	$(BIN)/python -m benchmarks cpu --out build/cpu

bench-layouts: $(INSTALLED)  ## size, time to build and speed of every layout and tile size
	$(BIN)/python -m benchmarks rewrites.layouts --out build/layouts.json

bench-schedules: $(INSTALLED)  ## schedules beside each other; a table and a plot in build/
	$(BIN)/pip install --quiet --editable '.[plot]'
	$(BIN)/python -m benchmarks rewrites.schedules --out build/schedules

bench-search: $(INSTALLED)  ## search for schedules of all models, and matrices of what is lost; goes on in build/search
	$(BIN)/pip install --quiet --editable '.[test]'
	$(BIN)/python -m benchmarks tuning.search
	$(BIN)/python -m benchmarks tuning.sensitivity

bench-tiling: $(INSTALLED)  ## tiles that a row visits under each way of tiling; counted, not timed
	$(BIN)/python -m benchmarks rewrites.tiling --out build/tiling.json

bench-gpu: $(INSTALLED)  ## make build/gpu, which runs offline with a driver and numpy; and run it
	$(BIN)/python -m benchmarks gpu.folder --out build/gpu
	cd build/gpu && "$(CURDIR)/$(BIN)/python" -m benchmarks gpu.speed --out results.json

studies: $(INSTALLED)  ## the experiments of the papers: docs/studies.md with its tables and plots
	$(BIN)/pip install --quiet --editable '.[bench]'
	$(BIN)/python -m benchmarks study all

gpu-code: $(INSTALLED)  ## registers and memory of all kernels for GPUs, in benchmarks/results/gpu_code.md; needs nvcc
	$(BIN)/python -m benchmarks gpu.kernels.registers

gpu-cycles: $(INSTALLED)  ## what kernels take of a multiprocessor, in benchmarks/results/gpu_cycles.md; needs nvcc and nvdisasm
	$(BIN)/python -m benchmarks gpu.kernels.cycles

notebooks: $(INSTALLED)  ## run all notebooks, and keep what they print and draw
	$(BIN)/python tools/stored_notebooks.py

docs: $(INSTALLED)  ## the site, in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: build/tools/installed  ## the wheel and the sdist, checked, in dist
	rm -rf dist
	$(TOOLS)/python -m build --outdir dist .
	$(TOOLS)/twine check --strict dist/*
	$(TOOLS)/check-wheel-contents dist/*.whl

install-matrix: dist  ## the wheel in bare environments, Python by Python; writes docs/installing.md
	PATH="$(CURDIR)/$(TOOLS):$$PATH" $(TOOLS)/python tools/install_matrix.py dist/*.whl --write

sbom: dist  ## what the wheel installs, with licences, as CycloneDX, in build/sbom.json
	$(PYTHON) -m venv --clear --without-pip build/bare
	$(TOOLS)/pip --python build/bare/bin/python install --quiet dist/*.whl
	$(TOOLS)/cyclonedx-py environment --pyproject pyproject.toml --output-file build/sbom.json build/bare

release: test-full docs install-matrix sbom release-check  ## what must pass before a version goes out

release-check:  ## refuse addresses that lead nowhere, and a version without its date
	@! grep -n 'tvm-forest\.example' pyproject.toml || { echo "pyproject.toml: say where the project lives"; exit 1; }
	@! grep -n '^## .*unreleased' CHANGELOG.md || { echo "CHANGELOG.md: give the version its date"; exit 1; }

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --editable '.[test,lint]'
	-$(BIN)/python -m compileall -qq -j 0 .venv/lib tvm_forest tests tools benchmarks  # pip uses one core
	touch $@

build/tools/installed: pyproject.toml  # without the package itself, which `dist` builds
	$(PYTHON) -m venv build/tools
	$(TOOLS)/pip install --quiet --upgrade 'pip>=25.1'
	$(TOOLS)/pip install --quiet --group release
	touch $@
