# Two commands are all that a fresh clone needs: `make demo` and `make test`.
# Each makes .venv, installs what constraints.txt pins (checked by hashes), sees to Java, and then runs.
# PYTHON=/path/to/python chooses the interpreter; JAVA_HOME is honoured.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
STAMP := $(VENV)/.stamp
BIN := $(VENV)/bin
SOURCES := src tests benchmarks examples scripts
# What `make test` samples and `make test-all` runs in full.
EXHAUSTIVE := soak or exhaustive
# Clusters and hosts of their own, minutes each: only `make faults` has the time.
LABORATORY := laboratory
# Two lanes side by side: one has the JVM and its tests, both take the rest (tests/conftest.py).
LANES := --numprocesses 2 --dist loadscope --no-loadscope-reorder
# Prefix of every command that starts Spark: finds a Java 17+, or installs one.
WITH_JAVA := JAVA_HOME="$$(sh scripts/java.sh)" && export JAVA_HOME &&

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: $(STAMP) ## train on Iris and digits with two Spark workers, and show the result
	@$(WITH_JAVA) $(BIN)/farandole demo

.PHONY: test
test: $(STAMP) ## the tests of every capability, docstring examples included (ARGS="-k name" to choose)
	@$(WITH_JAVA) $(BIN)/python -m pytest $(LANES) -m "not ($(EXHAUSTIVE) or $(LABORATORY))" $(ARGS)

.PHONY: test-rest
test-rest: $(STAMP) ## what test-all has beyond test: all combinations, many fits in a row
	@$(WITH_JAVA) $(BIN)/python -m pytest $(LANES) -m "($(EXHAUSTIVE)) and not $(LABORATORY)" $(ARGS)

.PHONY: test-all
test-all: test test-rest ## every test

.PHONY: faults
faults: $(STAMP) ## every fault and attack, with a table of how each of them ended
	@$(WITH_JAVA) $(BIN)/python -m pytest -m "fault or attack" --faults tests $(ARGS)

.PHONY: check
check: $(STAMP) ## ruff, mypy --strict, the layer test, and known vulnerabilities of what is pinned
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy --strict src
	$(BIN)/python -m pytest -q tests/test_layers.py
	$(BIN)/python scripts/audit.py

.PHONY: format
format: $(STAMP) ## let ruff put the code in order
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

.PHONY: bench
bench: $(STAMP) ## run every file of benchmarks/
	@$(WITH_JAVA) for file in $(wildcard benchmarks/*.py); do \
	    echo "== $$file"; $(BIN)/python "$$file" || exit 1; \
	done

.PHONY: package
package: $(STAMP) ## build source archive and wheel into dist/, and try them as a user would
	@sh scripts/package.sh

.PHONY: sbom
sbom: $(STAMP) ## all packages of .venv as a CycloneDX bill of materials: dist/farandole.cdx.json
	@mkdir -p dist
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON \
	    -o dist/farandole.cdx.json $(BIN)/python

.PHONY: pin
pin: $(STAMP) ## write the hashes of all packages that constraints.txt pins
	$(BIN)/python scripts/pin.py

.PHONY: matrix
matrix: $(STAMP) ## which versions of Python and Spark work; writes docs/compatibility.md
	@$(WITH_JAVA) $(BIN)/python scripts/matrix.py $(ARGS)

.PHONY: setup
setup: $(STAMP) ## only the set-up: .venv, packages, Java
	@sh scripts/java.sh >/dev/null && echo "Ready. Next: make demo"

.PHONY: clean
clean: ## remove environments, caches, build output, and what demo and explain write
	rm -rf $(VENV) .matrix build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf farandole-demo farandole-explain spark-warehouse metastore_db derby.log artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt requirements-build.txt requirements-dev.txt
	@sh scripts/venv.sh $(VENV)
	@touch $@
