# Two commands do it all on a machine with python3 (with venv), make and git: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
WORKERS ?= 2

.PHONY: demo reproduce example test test-long test-all lint types format build test-matrix bench bench-exact bench-growth \
	bench-likelihoods bench-marginalize bench-mnist bench-overhead bench-single-site bench-sklearn bench-solvers \
	bench-survival bench-data bench-scaling bench-element-fraction bench-torch trust docs clean

demo: $(VENV)/.demo
	$(BIN)/legrad reproduce all --quick --out out/demo

# The paper's experiments at full size, about 35 minutes on 2 cores; MNIST from LEGRAD_DATA, else from OpenML.
reproduce: $(VENV)/.demo
	$(BIN)/legrad reproduce all --out out/reproduce

# The README's example: which of 20 features matter?
example: $(VENV)/.demo
	$(BIN)/python examples/spike_and_slab.py

# What a change must pass, in minutes: every estimator against enumeration, every rule against brute force.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not long"

# What takes longer: draws by the million, long fits, experiments, benchmarks, a browser.
test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m long

test-all: test test-long

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The source distribution and the wheel, in dist/; the wheel is then installed and tried in a fresh environment.
build: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build
	PYTHON=$(BIN)/python sh tools/check_wheel.sh

# What one would use instead, on the same problems: writes docs/results/peers.json, docs/peers.md and its figure.
# MNIST and binarized MNIST from LEGRAD_DATA, else digits are synthetic.
bench: $(VENV)/.bench
	LEGRAD_DATA="$(LEGRAD_DATA)" $(BIN)/python benchmarks/peers/table.py
	$(BIN)/python docs/peers.py

# The solver of exact ELBOs against Adam, L-BFGS and fixed draws: seconds to 99.9% of the way. Writes docs/solvers.md.
bench-solvers: $(VENV)/.bench
	LEGRAD_DATA="$(LEGRAD_DATA)" $(BIN)/python benchmarks/peers/solvers.py
	$(BIN)/python docs/solvers.py

# Static binarized MNIST from LEGRAD_DATA, five estimators and a long fit: about half an hour. Writes docs/mnist.md.
bench-mnist: $(VENV)/.demo
	LEGRAD_DATA="$(LEGRAD_DATA)" $(BIN)/python benchmarks/mnist/run.py --steps 4000 --label compare
	LEGRAD_DATA="$(LEGRAD_DATA)" $(BIN)/python benchmarks/mnist/run.py --methods LeGrad --steps 100000 --label long
	$(BIN)/python docs/mnist.py

# legrad.sklearn against scikit-learn: support, log-loss, calibration; about 10 minutes. Writes docs/scikit_learn.md. One
# thread, as threads only get into each other's way on matrices this small.
bench-sklearn: $(VENV)/.demo
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/sklearn_table.py
	$(BIN)/python docs/scikit_learn.py

# Exact terms against the paper's estimator and ELBOs by hand, MNIST from LEGRAD_DATA. Writes docs/exact_results.md.
bench-exact: $(VENV)/.demo
	LEGRAD_DATA="$(LEGRAD_DATA)" $(BIN)/python benchmarks/exact/run.py
	$(BIN)/python docs/exact_results.py

# Steps per second of the loop against NumPyro's, on a tiny model.
bench-overhead: $(VENV)/.demo
	$(BIN)/python benchmarks/overhead.py

# One-element changes against hand-written code and brute force; LEGRAD_DATA holds mnist/, else digits are synthetic.
bench-single-site: $(VENV)/.demo
	LEGRAD_DATA="$(LEGRAD_DATA)" $(BIN)/python benchmarks/single_site.py

# A step, setting up and memory from 10^4 to 10^6 elements, each size in a process of its own.
bench-growth: $(VENV)/.demo
	$(BIN)/python benchmarks/growth.py

# Weak and strong scaling of a step over devices and processes, measured and modelled. Writes docs/results/scaling.json.
bench-scaling: $(VENV)/.demo
	$(BIN)/python benchmarks/scaling.py

# A random share of the elements each step, on a grid of 1000 x 1000 spins and a mixture of 10 million points.
bench-element-fraction: $(VENV)/.demo
	$(BIN)/python benchmarks/element_fraction.py

# Likelihoods with forms of their own against NumPyro's and against hand-written code.
bench-likelihoods: $(VENV)/.demo
	$(BIN)/python benchmarks/likelihoods.py

# Discrete latents summed out: legrad, by hand, and NumPyro's enumeration with funsor. Writes docs/marginalize_results.md.
bench-marginalize: $(VENV)/.bench
	$(BIN)/python benchmarks/marginalize.py

# Fits killed at random and started again, compared bit by bit.
bench-survival: $(VENV)/.demo
	$(BIN)/python benchmarks/survival.py --kills 50

# Pyro and Storchastic on the problems of the peers table, in an environment of their own; JAX's writes the problems.
bench-torch: $(VENV)/.demo .venv-torch/.installed
	LEGRAD_DATA="$(LEGRAD_DATA)" $(BIN)/python benchmarks/peers/export.py --out out/peers
	.venv-torch/bin/python benchmarks/peers/torch_peers.py --problems out/peers

# A fit on 10 million rows of 50 columns in a file (2 GB, temporary), and the memory it takes.
bench-data: $(VENV)/.demo
	$(BIN)/python benchmarks/out_of_core.py
	$(BIN)/python benchmarks/out_of_core.py --processes 2

# Is each fit right, or flagged? Fits without a guide on posteriordb (from LEGRAD_DATA, else the kept rows stay), users'
# models and 15 problems, peers beside them, and fits with guides: about an hour and a half. Writes docs/results/trust*.json
# and docs/trust.md. The posteriors that fits are compared with are kept in docs/results; benchmarks/trust/references.py and
# `user_table.py --answers` find them again.
trust: $(VENV)/.dev $(VENV)/.bench
	LEGRAD_DATA="$(LEGRAD_DATA)" $(BIN)/python benchmarks/trust/posteriors.py
	$(BIN)/python benchmarks/trust/user_table.py
	$(BIN)/python benchmarks/trust/structured.py
	$(BIN)/python benchmarks/trust/table.py
	$(BIN)/python docs/trust.py

# The documentation site, out/docs/index.html; every cell and example runs, and a warning or a broken link fails it.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -b html -d out/docs-cache docs out/docs

# Both ends of the supported range, each with the JAX and ArviZ that pip resolves there.
test-matrix:
	@sh tools/test_matrix.sh 3.11 3.13

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable ".[experiments]"
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	@touch $@

# NumPyro's TraceEnum_ELBO needs funsor; Pathfinder is blackjax's.
$(VENV)/.bench: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[experiments,bench]"
	@touch $@

.venv-torch/.installed:
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 pyro-ppl==1.9.2 storchastic==0.3.7
	@touch $@

clean:
	rm -rf .venv .venv-* out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
