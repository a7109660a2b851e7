# `make test` and `make demo` need Python 3.11 to 3.13, make and a package registry; they make .venv themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Bytecode is kept whatever the environment says: without it each of the tests' processes compiles the package again.
export PYTHONDONTWRITEBYTECODE :=
# Two more than there are cores: tests wait for the processes that they start.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(os.cpu_count() + 2)")

.PHONY: install test check demo bench coverage docs notebooks dist screenshots test-browser test-link test-data test-dist test-faults test-long test-sources soak clean

install: $(READY)

# The constraint keeps the several GB of CUDA packages off machines that have no GPU.
$(READY): pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints/cpu.txt --editable '.[dev]'
	touch $(READY)

test: $(READY)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not browser and not link and not data and not faults and not dist and not long and not sources"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(READY)
	$(BIN)/thinwire demo

bench: $(READY)
	$(BIN)/python benchmarks/suite.py

coverage: $(READY)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not browser and not link and not data and not faults and not dist and not long and not sources" --cov --cov-report=term

# Each needs more than Python, or minutes; pytest's exit code 5 means that there is no such test yet.
test-browser test-link test-data test-dist test-long: test-%: $(READY)
	$(BIN)/pytest -m $* || [ $$? -eq 5 ]

# PostgreSQL comes from the system's packages (apt-get install postgresql), moto from the registry.
test-sources: $(READY)
	$(BIN)/python -m pip install --quiet 'moto[s3,server]'
	$(BIN)/pytest -m sources

# The site, as plain pages that need no server: build/site/index.html.
docs: $(READY)
	$(BIN)/python docs/making/pictures.py
	$(BIN)/thinwire schema --out docs/schema/job-1.json
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Runs the notebooks and keeps their outputs in them.
notebooks: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python docs/making/notebooks.py

# dist/: a wheel and a source archive, built with what is installed here.
dist: $(READY)
	$(BIN)/hatchling build -d dist

# The documents' screenshots, made by the browser tests.
screenshots: $(READY)
	THINWIRE_SCREENSHOTS=docs/images $(BIN)/pytest -m browser

# Real parties, killed, stopped, cut off and lied to; two runs at a time.
test-faults: $(READY)
	$(BIN)/pytest -m faults -n 2

soak: $(READY)
	$(BIN)/python tests/faults/soak.py 20

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
