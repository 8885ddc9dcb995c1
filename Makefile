# Everything runs in .venv, which the targets make for themselves from requirements/.
PYTHON ?= python3
BIN := .venv/bin
PIP := -m pip --disable-pip-version-check install --quiet --no-warn-script-location
# Nothing is installed whose hash is not known; Partita itself is built with what is there then. The files list all that
# is needed, so pip resolves nothing: it would look at newer releases for extras, whose hashes are in no file.
INSTALL = $(BIN)/python $(PIP) --no-deps --require-hashes -r requirements/$(1).txt && \
	$(BIN)/python $(PIP) --no-deps --no-build-isolation -e .
PIN := .venv-release/bin/uv pip compile --quiet --no-header --no-annotate --no-emit-index-url --python-version 3.11
COMPILE := $(PIN) --generate-hashes --constraints constraints.txt
VERSION := $(shell sed -n 's/__version__ = "\(.*\)"/\1/p' src/partita/_version.py)
WORKERS ?= 2

.PHONY: demo test shapes coverage methods engines check hooks docs docs-serve format bench soak picture lock pin hashes bom clean

demo: .venv/run.stamp
	$(BIN)/partita demo --out .

test: .venv/dev.stamp
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not engines" $(COVER)

# The same and the engines, and which lines they reach: the modules that are covered least stand last.
coverage: .venv/engines.stamp
	$(MAKE) test COVER="--cov --cov-report="
	$(MAKE) engines COVER="--cov --cov-report= --cov-append"
	$(BIN)/coverage report --sort=-cover --skip-covered | tail -24

# Every row of the paper's table beside its reference.
methods: .venv/dev.stamp
	$(BIN)/partita methods --check --quiet

check: .venv/dev.stamp docs
	$(BIN)/python -m pip check --quiet
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Into site/; a link that leads nowhere, or a name that is not in the code, is an error.
docs: .venv/dev.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

docs-serve: .venv/dev.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# What `git commit` checks from now on, in this clone.
hooks: .venv/dev.stamp
	$(BIN)/pre-commit install

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/engines.stamp
	$(BIN)/python -m benchmarks.first_result
	$(BIN)/python -m benchmarks.many_sites
	$(BIN)/python -m benchmarks.fold_cost
	$(BIN)/python -m benchmarks.blas_threads
	$(BIN)/python -m benchmarks.network_steps
	$(BIN)/python -m benchmarks.network_round
	$(BIN)/python -m benchmarks.streaming_gp
	$(BIN)/python -m benchmarks.unification
	$(BIN)/python -m benchmarks.server
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.federation_rounds --sites 3,10,30
	$(BIN)/python -m benchmarks.federation_rounds --sites 3,10 --model network
	$(BIN)/python -m benchmarks.federation_rounds --load

# Shapes that are written in types, checked at every call.
SHAPED := partita.families,partita.expectations,partita.free_energy,partita.models,partita.solvers,partita.gp,partita.gaussian_processes
shapes: .venv/dev.stamp
	PYTHONPATH=tests $(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not engines" \
		--jaxtyping-packages=$(SHAPED),shapes.check tests/families tests/solvers tests/models tests/gp

engines: .venv/engines.stamp
	$(BIN)/python -m pytest -m engines $(COVER)

soak: .venv/dev.stamp
	$(BIN)/partita study kill-and-resume
	$(BIN)/partita study failpoints
	$(BIN)/partita study torn-payloads
	$(BIN)/partita study soak
	$(BIN)/python -m pytest -n $(WORKERS) -m slow
	FAULTS_STEPS=10000 $(BIN)/python -m pytest tests/faults/test_faults.py -k test_01
	$(BIN)/partita study estimator-checks

picture: .venv/dev.stamp
	$(BIN)/partita study pictures

# The newest versions that the ranges allow, in an environment of its own; then the hashes of all their files.
lock: .venv-release/stamp
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet '.[dev,ray,flower]'
	.venv-lock/bin/python -m pip freeze --all --exclude partita --exclude pip > constraints.txt
	rm -rf .venv-lock build
	$(MAKE) pin

# What pyproject.toml asks for beyond constraints.txt is added to it; versions that are pinned there stay.
pin: .venv-release/stamp
	$(PIN) pyproject.toml --extra dev --extra ray --extra flower --output-file constraints.txt
	$(MAKE) hashes

hashes: .venv-release/stamp
	echo 'setuptools>=77' | $(COMPILE) pyproject.toml - --output-file requirements/run.txt
	$(COMPILE) pyproject.toml --extra dev --output-file requirements/dev.txt
	$(COMPILE) pyproject.toml --extra dev --extra ray --extra flower --output-file requirements/engines.txt
	$(COMPILE) requirements/release.in --output-file requirements/release.txt

# What a release is made of, with the hashes of all files: alone, and with engines and tools.
bom: .venv-release/stamp
	mkdir -p dist
	for set in run engines; do .venv-release/bin/cyclonedx-py requirements --pyproject pyproject.toml \
		--mc-type library --output-reproducible --output-format JSON -o dist/partita-$(VERSION)-$$set.cdx.json \
		requirements/$$set.txt || exit 1; done

.venv/run.stamp: pyproject.toml requirements/run.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Partita needs Python 3.11 or later; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing Partita into .venv"
	$(call INSTALL,run)
	touch $@

.venv/dev.stamp: .venv/run.stamp requirements/dev.txt
	@echo "installing the development tools into .venv"
	$(call INSTALL,dev)
	touch $@

.venv/engines.stamp: .venv/dev.stamp requirements/engines.txt
	@echo "installing Ray and Flower into .venv"
	$(call INSTALL,engines)
	touch $@

# Tools for releases, which are no part of them.
.venv-release/stamp: requirements/release.txt
	rm -rf .venv-release && $(PYTHON) -m venv .venv-release
	.venv-release/bin/python $(PIP) --no-deps --require-hashes -r requirements/release.txt
	touch $@

clean:
	rm -rf .venv .venv-release build dist site report.html
