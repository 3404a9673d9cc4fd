# `make demo` and `make test` need nothing but Python 3.10 to 3.13; both can be repeated.
# Set PYTHON to use another Python, DEMO_ARGS and TEST_ARGS to pass options on.

.PHONY: help demo test check lint types doctests wheel heavy-tests format clean

BIN := .venv/bin
LIGHT := not (heavy or slurm or browser)

help:
	@echo "make demo    train a small network on two processes and log it"
	@echo "make test    run the tests (minutes)"
	@echo "make check   lint, types, doctests, the built wheel, the heavy tests"
	@echo "make format  rewrite the code in the house format"
	@echo "make clean   remove the environment and everything that was built"

demo:
	@scripts/setup.sh demo
	$(BIN)/distmetrics demo $(DEMO_ARGS)

test:
	@scripts/setup.sh test
	$(BIN)/python -m pytest -m "$(LIGHT)" $(TEST_ARGS)

check: lint types doctests wheel heavy-tests

lint types doctests wheel heavy-tests format: .development

.PHONY: .development
.development:
	@scripts/setup.sh test,dev

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

doctests:
	$(BIN)/python -m pytest --doctest-modules distmetrics

wheel:
	scripts/check_wheel.sh

heavy-tests:
	$(BIN)/python -m pytest -m "not ($(LIGHT))" $(TEST_ARGS)

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
