# Two commands for a newcomer: `make up` and `make test`. The others are for developers.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without bytecode each of the thousands of processes that tests start would compile what it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: up test long mutate check interop bench reference first-replies lock programs clean help

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 15

up: .venv/.run   ## start every surface on this machine
	@$(BIN)/openclaw up

# The tests of one file run in one process, in their order. Tests wait half of the time, so there are more processes than
# processors; at most 8, for machines with little memory.
AT_ONCE = $(shell $(PYTHON) -c 'import os; print(min(8, os.cpu_count() * 2))')
PYTEST = $(BIN)/python -m pytest --numprocesses $(AT_ONCE) --dist loadfile --no-loadscope-reorder
test: .venv/.dev programs   ## run the tests
	@echo "make: running the tests, on every processor"
	@$(PYTEST) -m "not interop"

long: .venv/.dev programs   ## run the tests, the random ones ten times as often or more (an hour)
	@echo "make: running the long tests"
	@OPENCLAW_LONG=1 $(PYTEST) -m "not interop"

mutate: .venv/.dev programs   ## change the security modules at random and check that their tests fail (ten minutes)
	@$(BIN)/python scripts/mutate.py

interop: .venv/.dev   ## run the suites against real counterparts (conformance suite, the real OpenClaw, the CLI agents)
	@$(BIN)/python -m tests.programs install interop
	@echo "make: running the interop suites"
	@$(BIN)/python -m pytest -m interop

check: .venv/.dev   ## format, lint, types, architecture
	@echo "make: checking format, lint, types, architecture, first replies, locks"
	@$(BIN)/ruff format --check --quiet . || { echo "make: run $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary --platform win32 --no-warn-unreachable --cache-dir .mypy_cache/windows src
	@$(BIN)/python scripts/first_replies.py --check
	@$(BIN)/python scripts/claw_reference.py --check
	@$(BIN)/python scripts/reference.py --check
	@$(BIN)/python -m pytest -q tests/test_architecture.py

programs: .venv/.dev
	@$(BIN)/python -m tests.programs install

bench: .venv/.dev   ## measure against floors and peers (see benchmarks/README.md)
	@$(BIN)/python benchmarks/prepare.py
	@$(BIN)/python benchmarks/stdio.py
	@$(BIN)/python benchmarks/http.py
	@$(BIN)/python benchmarks/proxy.py
	@$(BIN)/python benchmarks/headers.py
	@$(BIN)/python benchmarks/node.py
	@$(BIN)/python benchmarks/gateway.py
	@$(BIN)/python benchmarks/order.py
	@$(BIN)/python benchmarks/agents.py
	@$(BIN)/python benchmarks/nodes.py
	@$(BIN)/python benchmarks/claw.py
	@$(BIN)/python benchmarks/cron.py
	@$(BIN)/python -P benchmarks/mail.py
	@$(BIN)/python benchmarks/up.py

reference: .venv/.dev   ## generate the reference pages
	@$(BIN)/python scripts/reference.py

first-replies: .venv/.dev   ## generate the stdio servers' first replies and the tool reference
	@$(BIN)/python scripts/first_replies.py
	@$(BIN)/python scripts/claw_reference.py

LOCK = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-strip-extras \
       --custom-compile-command "make lock" pyproject.toml
lock: .venv/.dev   ## resolve the locked dependencies again
	@$(LOCK) --all-extras -o requirements/run.lock
	@$(LOCK) --all-extras --group dev -o requirements/dev.lock

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: Python 3.11 or newer is needed; choose it with make PYTHON=python3.12 …"; exit 1; }
	@echo "make: creating the virtual environment .venv"
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/.run: .venv/.made requirements/run.lock pyproject.toml
	@echo "make: installing openclaw-mcp and its dependencies into .venv"
	@$(BIN)/pip install --quiet --require-hashes -r requirements/run.lock
	@$(BIN)/pip install --quiet --no-deps --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

.venv/.dev: .venv/.run requirements/dev.lock
	@echo "make: installing the development tools into .venv"
	@$(BIN)/pip install --quiet --require-hashes -r requirements/dev.lock
	@touch $@

clean:   ## remove everything that make created
	@rm -rf .venv .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
