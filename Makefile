# Everything is set up in .venv and build/ inside this tree. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NATIVE := build/native
SYSTEM_CMAKE := $(shell command -v cmake 2>/dev/null)
CMAKE := $(or $(SYSTEM_CMAKE),$(BIN)/cmake)
JOBS ?= $(shell nproc)
WORKERS = $(shell expr $(JOBS) + 2)
C_FILES = $(shell git ls-files -co --exclude-standard 'native/*.c' 'native/*.h' 'tests/native/*.c' 'tests/native/*.h')
TIDY_FLAGS = -std=gnu11 -D_GNU_SOURCE -DNVS_RELEASE=\"0\" -Inative/include -Inative/interposer -Inative/simcuda -Inative
PY_DIRS := src tests benchmarks tools examples docs/verify test_gpu_allocation.py

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help demo test test-pythons coverage lint format generate native stubs bench soak test-kube soak-kube wheels \
	test-install images manifests clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(READY): pyproject.toml tools/bootstrap.sh
	@sh tools/bootstrap.sh $(PYTHON) $(VENV)
	@touch $@

# On a machine with CMake the native part needs nothing else; without it, CMake comes with the virtual environment.
native: $(if $(SYSTEM_CMAKE),,$(READY)) ## build libnvshare.so and the simulated driver into build/native
	@mkdir -p build
	@$(CMAKE) -S . -B $(NATIVE) > build/cmake.log 2>&1 || { cat build/cmake.log; exit 1; }
	@$(CMAKE) --build $(NATIVE) -j $(JOBS)

demo: $(READY) native ## a short demonstration, on simulated GPUs where there is no real one
	@$(BIN)/nvshare demo --json build/demo.json --html build/demo.html

# Most tests that run processes wait for them, so there are two workers more than cores. No test looks at how fast this
# machine is: that is for `make bench`.
test: $(READY) native ## all tests that need no GPU and no cluster
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

test-pythons: $(READY) native ## the unit tests on every other Python that can be had, and on that of Debian 13 (root)
	@sh tools/test_pythons.sh

coverage: $(READY) native ## which lines of Python the unit and integration tests reach, in all their processes
	@rm -rf build/coverage
	@$(BIN)/coverage run -m pytest -n $(WORKERS) --dist worksteal $(or $(TESTS),tests/unit tests/integration); \
		failed=$$?; $(BIN)/coverage combine -q && $(BIN)/coverage report; exit $$failed

lint: $(READY) ## ruff, mypy strict, import contracts of Python and C, clang-format, clang-tidy
	$(BIN)/ruff check $(PY_DIRS)
	$(BIN)/ruff format --check $(PY_DIRS)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/includes.py
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	git ls-files -co --exclude-standard 'native/*.c' | xargs -P $(JOBS) -n 8 sh -c '$(BIN)/clang-tidy --quiet "$$@" -- $(TIDY_FLAGS)' -

format: $(READY) ## put code into the house format
	$(BIN)/ruff check --fix $(PY_DIRS)
	$(BIN)/ruff format $(PY_DIRS)
	$(BIN)/clang-format -i $(C_FILES)

# The frameworks table is that of the newest result.
generate: $(READY) ## write what is generated: protocol, slice table and constants for C, marks of hooked functions, the dashboard, the table of frameworks
	$(BIN)/python -m nvshare.wire.c_header native/include/nvshare_protocol.h
	$(BIN)/python tools/slice_table.py native/client/slice_table.h
	$(BIN)/python tools/compute_constants.py native/include/compute_constants.h
	$(BIN)/python tools/surface.py
	$(BIN)/python tools/dashboard.py deploy/chart/nvshare/dashboard.json
	$(BIN)/python tools/compatibility.py $(lastword $(sort $(wildcard docs/results/*-frameworks.json)))

stubs: ## the messages of the kubelet's API, from the definitions in src/nvshare/kube/api
	@sh tools/stubs.sh $(PYTHON) build/stubs

bench: $(READY) native ## the published table, in the model and simulated; scale and launch cost
	$(BIN)/nvshare bench mission --model 2xT4
	$(BIN)/nvshare bench mission --sim 2xT4 --speed 10
	$(BIN)/nvshare bench mission --sim 2xT4 --speed 1 --only 4
	$(BIN)/nvshare bench swap --sim A100-40G
	$(BIN)/python benchmarks/core_events.py
	$(BIN)/python benchmarks/daemon_scale.py
	$(BIN)/python benchmarks/lease_rate.py
	$(BIN)/python benchmarks/launch_cost.py
	$(BIN)/nvshare bench compute --sim H200 --only free,idle --seconds 2

soak: $(READY) native ## long random runs: 100,000 event sequences, a million frames, 20,000 switches (an hour)
	$(BIN)/python tests/soak/core_sequences.py --sequences 100000 --seed 1
	NVSHARE_SOAK=1 $(BIN)/pytest --timeout 1800 tests/unit/daemon tests/integration/daemon
	NVSHARE_SOAK=1 $(BIN)/pytest tests/integration/whole/test_swap.py -k every_byte
	NVSHARE_SOAK=1 $(BIN)/pytest tests/integration/bench -k survivor
	NVSHARE_SOAK=1 $(BIN)/pytest --timeout 400 tests/integration/launch/test_kills.py

test-kube: $(READY) native ## the tests of the Kubernetes part on a real cluster that is made for them (root; Go the first time)
	$(BIN)/python tools/kube/cluster.py run $(BIN)/pytest -rs --durations=8 tests/kube

soak-kube: $(READY) native ## the same with 200 random rounds instead of 10
	NVSHARE_SOAK=1 $(BIN)/python tools/kube/cluster.py run $(BIN)/pytest -rs tests/kube

wheels test-install: export ZIG_GLOBAL_CACHE_DIR = $(CURDIR)/build/zig

wheels: $(READY) ## the sdist and the wheels, for x86-64 and arm64 and any glibc since 2.17, into dist/
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[wheels]'
	@$(BIN)/python tools/wheels.py dist

test-install: native wheels ## the wheels, installed and run: outside the tree, on glibc 2.31, on arm64
	$(BIN)/pytest -n 3 --dist loadfile -rs --durations=5 tests/install

IMAGE_PREFIX ?= localhost/nvshare
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/nvshare/__init__.py)

images: ## container images from this machine's wheel: make images IMAGE_PREFIX=registry.example/team
	@$(MAKE) wheels
	@sh tools/images.sh $(IMAGE_PREFIX) $(VERSION)

manifests: ## deploy/manifests, rendered from the chart (needs helm)
	@sh tools/manifests.sh deploy/manifests

clean: ## remove everything that was built, .venv too
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
