# Every target does the set-up that it needs. `make` alone prints this list.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PY := .venv/bin/python
BIN := .venv/bin
STUBS := clients/python
PROTOS := $(sort $(wildcard proto/perdure/v1/*.proto))
CYTHON := $(wildcard codec/perdure_codec/*.pyx codec/perdure_codec/*.px[di])
ROUNDS ?= 200
PROTOC = PATH="$(CURDIR)/.venv-generate/bin:$$PATH" \
	.venv-generate/bin/python -m grpc_tools.protoc --proto_path=proto

.PHONY: help
help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) \
		| awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

.PHONY: setup
setup: .venv/.ready ## make .venv with everything pinned, and compile the codec

.venv/.ready: pyproject.toml constraints.txt scripts/setup $(CYTHON)
	@scripts/setup
	@touch $@

.PHONY: demo
demo: .venv/.ready ## a fleet of agents loses workers and server, and comes back
	@$(BIN)/perdure demo

.PHONY: test
test: .venv/.ready ## run every test
	@$(PY) -m pytest -q $(ARGS)

.PHONY: check
check: format-check lint types stubs-fresh stubs-oldest test ## everything CI runs

.PHONY: bench
bench: .venv/.ready ## run the benchmarks (ARGS chooses one)
	@$(PY) -m benchmarks $(ARGS)

.PHONY: kill-rounds
kill-rounds: .venv/.ready ## SIGKILL server and Postgres ROUNDS times under load
	@$(PY) -m tests.faults.kill_rounds --rounds $(ROUNDS)

.PHONY: generate
generate: .venv-generate/.ready ## write the Python stubs from proto/
	@$(PROTOC) --python_out=$(STUBS) --mypy_out=quiet:$(STUBS) \
		$(PROTOS:proto/%=%)
	@$(PROTOC) --grpc_python_out=$(STUBS) --mypy_grpc_out=quiet:$(STUBS) \
		$(patsubst proto/%,%,$(filter %_service.proto,$(PROTOS)))

# .venv-generate holds the generator, .venv-oldest the oldest runtime.
.venv-%/.ready: proto/%.txt | .venv/.ready
	@$(PY) -m venv --clear .venv-$*
	@.venv-$*/bin/python -m pip --disable-pip-version-check install \
		--quiet --root-user-action=ignore --requirement $<
	@touch $@

.PHONY: stubs-fresh
stubs-fresh: .venv-generate/.ready ## fail if the stubs are not those of proto/
	@rm -rf build/stubs && mkdir -p build/stubs
	@$(MAKE) --no-print-directory generate STUBS=build/stubs
	@diff -r -x __pycache__ -x __init__.py -x py.typed \
		build/stubs/perdure/v1 clients/python/perdure/v1 >/dev/null \
		|| { echo 'stubs are stale: run make generate' >&2; exit 1; }

.PHONY: stubs-oldest
stubs-oldest: .venv-oldest/.ready ## import stubs, client and codec on the oldest runtime
	@cd clients/python && PYTHONPATH=../../codec ../../.venv-oldest/bin/python \
		-W error -c 'import importlib, pathlib; \
		[importlib.import_module("perdure.v1." + path.stem) \
		for path in sorted(pathlib.Path("perdure/v1").glob("*_pb2*.py"))]; \
		import perdure, perdure_codec; [getattr(perdure, name) \
		for name in perdure.__all__]; state = {"a": [1.5, b"x", (1, 2**200)]}; \
		assert perdure_codec.decode(perdure_codec.encode(state)) == state'

.PHONY: format
format: .venv/.ready ## rewrite Python and proto in the house format
	@$(BIN)/ruff check --quiet --fix --exit-zero .
	@$(BIN)/ruff format --quiet .
	@cd proto && ../$(BIN)/buf format --write

.PHONY: format-check
format-check: .venv/.ready
	@$(BIN)/ruff format --check .
	@cd proto && ../$(BIN)/buf format --diff --exit-code

.PHONY: lint
lint: .venv/.ready ## ruff, cython-lint, import contracts, buf
	@$(BIN)/ruff check --quiet .
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint $(CYTHON)
	@$(BIN)/lint-imports --no-logo
	@cd proto && ../$(BIN)/buf lint

.PHONY: types
types: .venv/.ready ## mypy strict, and the codec's .pyi against the module
	@$(BIN)/mypy
	@$(PY) -m mypy.stubtest perdure_codec._codec

.PHONY: clean
clean: ## delete what make has made, the environments too
	@rm -rf .venv .venv-generate .venv-oldest build *.egg-info .mypy_cache .ruff_cache \
		.pytest_cache .hypothesis .import_linter_cache
	@rm -f codec/perdure_codec/_codec.c codec/perdure_codec/*.so
