# Everything runs in .venv, which the targets make for themselves from constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-warn-script-location -c constraints.txt
WORKERS ?= 2

.PHONY: demo test engines check docs docs-serve format bench soak picture lock clean

demo: .venv/run.stamp
	$(BIN)/partita demo --out .

test: .venv/dev.stamp
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not engines"

check: .venv/dev.stamp docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Into site/; a link that leads nowhere, or a name that is not in the code, is an error.
docs: .venv/dev.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

docs-serve: .venv/dev.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/dev.stamp
	$(BIN)/python -m benchmarks.many_sites
	$(BIN)/python -m benchmarks.fold_cost
	$(BIN)/python -m benchmarks.blas_threads
	$(BIN)/python -m benchmarks.network_steps
	$(BIN)/python -m benchmarks.network_round
	$(BIN)/python -m benchmarks.streaming_gp
	$(BIN)/python -m benchmarks.unification
	$(BIN)/python -m benchmarks.server
	$(BIN)/python -m benchmarks.scaling

engines: .venv/dev.stamp
	$(PIP) -e '.[ray,flower]'
	$(BIN)/python -m pytest -m engines

soak: .venv/dev.stamp
	$(BIN)/python -m experiments.kill_and_resume
	$(BIN)/python -m experiments.failpoints
	$(BIN)/python -m experiments.soak
	$(BIN)/python -m pytest -n $(WORKERS) -m slow
	FAULTS_STEPS=10000 $(BIN)/python -m pytest tests/test_faults.py -k test_01
	$(BIN)/python -m experiments.estimator_checks

picture: .venv/dev.stamp
	$(BIN)/python -m experiments.demo_picture
	$(BIN)/python -m experiments.streaming_picture
	$(BIN)/python -m experiments.methods_picture

# The newest versions that the ranges allow, in an environment of its own.
lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet '.[dev,ray,flower]'
	.venv-lock/bin/python -m pip freeze --all --exclude partita --exclude pip > constraints.txt
	rm -rf .venv-lock build

.venv/run.stamp: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Partita needs Python 3.11 or later; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing Partita into .venv"
	$(PIP) -e .
	touch $@

.venv/dev.stamp: .venv/run.stamp
	@echo "installing the development tools into .venv"
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist site report.html
