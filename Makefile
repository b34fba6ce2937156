# `make help` lists the targets. `make venv` sets up what they need in .venv, from pinned
# packages. CI runs the same targets as people do.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help venv dev check demo unit parallel jobs test faults root cluster mpis offline browser reframe fuzz neon bundle wheel wheels lint types format scripts flags docs lock ci clean

BIN := .venv/bin

# Bytecode is kept, whatever the environment says: the tests start hundreds of processes,
# and each would compile some 200 modules.
export PYTHONDONTWRITEBYTECODE :=

# The small runs of this file start more ranks than cores, also as root in a container.
# Open MPI refuses both, and pins each rank to one core, unless told otherwise
# (OMPI_: version 4; PRTE_: version 5). Other MPIs read none of these.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_ALLOW_RUN_AS_ROOT := 1
export PRTE_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1
export OMPI_MCA_hwloc_base_binding_policy := none
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export PRTE_MCA_hwloc_default_binding_policy := none

help:  ## This list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14
	@echo
	@echo "For make venv: PYTHON=/path/to/python3.12  another Python, 3.10 to 3.13"
	@echo "               MPICXX=/path/to/mpicxx      your cluster's MPI (docs/slurm.md)"
	@echo "               SELF_CHECK=no               no mpirun here; later: make check"
	@echo "               WHEELS=folder               without a network (docs/offline.md)"

venv:  ## Set everything up in .venv (once; the other targets do it too)
	@GOALS="$(MAKECMDGOALS)" install/install.sh

BUNDLE ?= resnet-cpu.tar.gz
bundle: venv  ## One archive with the environment, for any path (BUNDLE=name)
	$(BIN)/python install/bundle.py $(BUNDLE)

wheel: venv  ## One wheel with all that is compiled, for pip (in dist/)
	@install/wheel.sh $(BIN)/.. dist

wheels: venv  ## All packages in wheels/, for make venv WHEELS=wheels offline
	@install/wheels.sh $(BIN)/.. wheels

check: venv  ## Check .venv: two ranks all-reduce a number, the C++ ops load
	@install/check.sh $(BIN)/..

demo: venv  ## Prepare images, train on 2 ranks, evaluate (in demo-run/)
	@launch/jobs/demo.sh

# PYTHON,LOCK: installs what the lock names, from the same places as `make venv`.
INSTALL = . install/pip_settings.sh && take_pip_sources $(1) && $(1) -m pip install --quiet \
	--no-deps --require-hashes $(if $(WHEELS),--no-index --find-links "$(WHEELS)") -r $(2)

dev: venv  ## What tests, lint and types need besides, in .venv (they call it)
	@[ .venv/dev -nt requirements-dev.txt ] && [ .venv/dev -nt requirements-parquet.txt ] || { \
	  $(call INSTALL,$(BIN)/python,requirements-dev.txt -r requirements-parquet.txt) && \
	  touch .venv/dev; }

# Tests find the environment's programs first.
unit parallel jobs faults root cluster mpis offline browser reframe: export PATH := $(CURDIR)/$(BIN):$(PATH)
PYTEST := python -m pytest

unit: dev  ## Tests of single modules, in three processes
	$(PYTEST) tests/unit -m "not slow" -n 3 --dist=loadfile --no-loadscope-reorder

parallel: dev  ## Tests of collective operations, inside one mpirun
	mpirun -np 2 $(PYTEST) tests/parallel
	mpirun -np 3 $(PYTEST) tests/parallel

jobs: dev  ## Tests that launch real jobs, some with injected faults
	$(PYTEST) tests/jobs tests/fault -m "not slow" -n 2 --dist=loadfile --no-loadscope-reorder

test: unit parallel jobs  ## All tests except the slow ones: unit, parallel, jobs (9 minutes)

faults: dev  ## Slow tests: faults in jobs, also on two simulated hosts (root)
	$(PYTEST) tests/fault tests/jobs tests/unit/test_op_arguments.py -m "fault or slow" --timeout=900

root: dev  ## The part of faults that needs root: hosts, disks, memory
	$(PYTEST) tests/fault --timeout=900 -m root

cluster: dev  ## Planned jobs under Debian's Open MPI and Slurm
	$(PYTEST) tests/cluster --timeout=900

mpis: dev  ## Jobs under five MPIs in one environment, which it fetches
	$(PYTEST) tests/mpis --timeout=1800

offline: dev  ## What bundle and wheels made, in a namespace without network
	$(PYTEST) tests/offline --timeout=1800

# Its packages are not in .venv, which needs them for nothing else.
.venv.browser/.installed: requirements-browser.txt | venv
	rm -rf .venv.browser
	$(call INSTALL,$(BIN)/python,$<) --target .venv.browser
	touch $@

browser: dev .venv.browser/.installed  ## The reports in Chromium (CHROMIUM=path: another one)
	PYTHONPATH=.venv.browser $(PYTEST) tests/browser

.venv.reframe/.installed: requirements-reframe.txt
	$(or $(PYTHON),python3) -m venv --clear .venv.reframe
	$(call INSTALL,.venv.reframe/bin/python,$<)
	touch $@

reframe: dev .venv.reframe/.installed  ## EasyBuild's recipe (Debian's lmod), ReFrame's suite
	$(PYTEST) tests/reframe --timeout=3600

fuzz:  ## The C++ ops on hostile inputs, under sanitizers
	@$(MAKE) --no-print-directory -f tests/native/Makefile

neon:  ## The C++ kernels for Arm (g++-aarch64-linux-gnu, qemu-user)
	@$(MAKE) --no-print-directory -f tests/native/Makefile run kernels CASES=60 BUILD=build/neon \
	  SANITIZERS=-O2 CXX=aarch64-linux-gnu-g++ RUN='qemu-aarch64 -L /usr/aarch64-linux-gnu'

lint: dev  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: dev  ## mypy
	$(BIN)/mypy

format: dev  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

scripts: venv  ## Write the ready scripts of launch/jobs, each by the command in it
	@for file in launch/jobs/*.sh launch/jobs/*.slurm; do \
	  command=$$(sed -n 's/^# Written by: python //p' $$file); \
	  [ -z "$$command" ] || { eval "$(BIN)/python $$command" >.script && cat .script >$$file; }; \
	done; rm -f .script

flags: venv  ## Write docs/flags.md, the table of all flags, from the programs
	$(BIN)/python docs/generate_flags.py

.venv.docs/.installed: requirements-docs.txt
	$(or $(PYTHON),python3) -m venv --clear .venv.docs
	$(call INSTALL,.venv.docs/bin/python,$<)
	touch $@

docs: .venv.docs/.installed  ## The documents as a site in build/site, for use offline
	.venv.docs/bin/python docs/speed_chart.py
	NO_MKDOCS_2_WARNING=1 .venv.docs/bin/mkdocs build --strict
	@echo "Open $(CURDIR)/build/site/index.html in a browser."

UV := uv==0.13.8
COMPILE := env -u PIP_FIND_LINKS -u UV_FIND_LINKS .lock-venv/bin/uv pip compile --universal \
	--generate-hashes --python-version 3.10 --no-header --quiet --no-emit-index-url \
	--no-emit-find-links $(UPGRADE)

lock:  ## Write requirements*.txt again (UPGRADE=--upgrade: newest)
	python3 -m venv .lock-venv
	.lock-venv/bin/python -m pip install --quiet $(UV)
	$(COMPILE) requirements.in -o requirements.txt
	$(COMPILE) requirements-export.in -o requirements-export.txt
	$(COMPILE) --no-config requirements-parquet.in -o requirements-parquet.txt
	$(COMPILE) requirements-dev.in -o requirements-dev.txt
	$(COMPILE) requirements-browser.in -o requirements-browser.txt
	$(COMPILE) requirements-reframe.in -o requirements-reframe.txt
	$(COMPILE) requirements-build.in -o requirements-build.txt
	$(COMPILE) requirements-docs.in -o requirements-docs.txt
	$(COMPILE) install/requirements-mpi4py.in -o install/requirements-mpi4py.txt
	$(COMPILE) install/requirements-wheel.in -o install/requirements-wheel.txt
	rm -rf .lock-venv

ci:  ## What CI runs: tests without skips, lint, types, the site
	@.ci/run

clean:  ## Remove what make made here (Horovod stays in ~/.cache)
	rm -rf .venv .venv.* .lock-venv demo-run/{images,records,model,eval.json} build dist wheels resnet-cpu.tar* resnet/native/libresnet_* *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@[ ! -d demo-run ] || rmdir --ignore-fail-on-non-empty demo-run
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
