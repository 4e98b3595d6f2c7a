# From a fresh clone: `make demo`, `make test` and `make lint` each work alone; `make bench` needs data sets (WEFT_DATA).
# Options of the benchmarks: `make bench ARGS="tree_lstm --data DIR"`.
# The first of them makes .venv; later ones reuse it until pyproject.toml or constraints.txt change.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready

# On a machine with a GPU, where torch is installed already: `make gpu PY=python3`, or its two halves, `make gpu-test` and the
# benchmarks alone; JOBS tests run at once.
PY ?= $(BIN)/python
JOBS ?= 14

.PHONY: demo test bench gpu gpu-test lint format clean

demo: $(READY)
	$(BIN)/weft demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

bench: $(READY)
	$(BIN)/weft bench $(ARGS)

gpu: gpu-test
	PYTHONPATH=src:$(PYTHONPATH) $(PY) -m benchmarks.gpu.run $(ARGS)

gpu-test:
	PYTHONPATH=src:$(PYTHONPATH) OMP_NUM_THREADS=1 $(PY) -m pytest -p no:benchmark -n $(JOBS) -q

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis report.html

# Some systems ship Python without ensurepip: there the pip that is installed fills the environment from outside.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv || $(PYTHON) -m venv --without-pip .venv
	$(PYTHON) -m pip --python $(BIN)/python install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@
