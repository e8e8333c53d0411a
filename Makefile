# Everything a developer or a curious reader types. Each target does the set-up that it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# `make test-spark SPARK=3.5.9` (or any target) works in an environment of its own with that version of Spark.
SPARK ?=
export SPARK
# `make test-newest` and `make test-oldest` work in environments of their own, with a wheel of what is in src.
DEPENDENCIES ?=
export DEPENDENCIES
VENV := .venv$(if $(SPARK),-spark-$(SPARK))$(if $(DEPENDENCIES),-$(DEPENDENCIES))
PY := $(VENV)/bin/python
# Several processes, because half of what tests of crashes do is wait, and three quarters of what those with a server do.
# At most two of them use a Spark, which is busy itself; tests/scheduling.py assigns tests to processes.
PYTEST := $(PY) -m pytest --dist loadscope
ON_SPARK := tests/spark
# Long tests, and tests that repeat others on another server, run in `make test-all` only.
SHORT := not soak and not long
ALL := not soak
# Lines are counted where that costs little: in tests that need no server and no Spark, and are not long.
COVERED := --cov=holdfast --cov-report=
STAMP := $(VENV)/.setup-done
# Halves what the start of a JVM costs; the tests do without where it cannot be written.
CLASSES := $(VENV)/spark.jsa
# A broker for the tests of Kafka, 43 MB; without a network they are skipped.
KAFKA := $(VENV)/kafka/.done
# A YARN for four long tests, 66 MB in addition to the jars of PySpark; without a network they are skipped.
YARN := $(VENV)/yarn/.done
# A schema registry for two long tests, 142 MB; without a network they are skipped.
REGISTRY := $(VENV)/registry/.done
# The newest Python for the test of the wheel, 60 MB. Without a network, and if CI is not set, the test takes the newest
# Python of the machine.
PYTHONS := .pythons
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
# The site has an environment of its own, 150 MB, so that its packages restrict no others.
DOCS := .venv-docs

# Half of what a short-lived Python costs is to compile the package, and tests start thousands of them.
unexport PYTHONDONTWRITEBYTECODE

# Spark starts its Python workers by this name, and would otherwise take whatever python3 is on the path.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)

.PHONY: help setup demo demo-ha demo-kafka demo-realtime soak chaos fuzz bench bench-quick downloads compile-tests test test-all durations test-again test-nojvm test-spark test-newest test-oldest coverage lint workflows types layers release lock docs docs-serve

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml requirements-dev.lock requirements-java.lock scripts/setup.sh $(if $(DEPENDENCIES),$(shell git ls-files src))
	@bash scripts/setup.sh

setup: $(STAMP) ## Make .venv: pinned dependencies, Holdfast, and Java if the machine has none

demo: $(STAMP) ## A year of flights through a stateful Spark job that is killed in the middle
	$(PY) examples/flights/demo.py

demo-ha: $(STAMP) ## The same with two job managers, of which the leader is killed in the middle
	$(PY) examples/flights/demo_ha.py

demo-kafka: $(STAMP) $(KAFKA) ## Payments through Kafka and into Delta, with a broker of its own; the job is killed
	$(PY) examples/payments/demo.py

demo-realtime: $(STAMP) $(KAFKA) ## Payments in real time, with a broker of its own; a worker is killed
	$(PY) examples/payments/demo_realtime.py

bench: $(STAMP) ## Measure rows/s against Spark and PyFlink, and what an epoch costs
	$(PY) benchmarks/keyed_count.py
	$(PY) benchmarks/small_epoch.py

bench-quick: $(STAMP) ## Compare ratios of speed with the committed ones (three minutes)
	$(PY) benchmarks/quick.py

soak: export EXAMPLES := all
soak: $(STAMP) ## The long runs: thousands of epochs with failures and kills, and all examples of Hypothesis
	$(PYTEST) tests -n 4 -m "hypothesis and not spark and not services"
	$(PY) -m pytest tests -m soak --timeout 0 -s

KIND ?= all
ROUNDS ?= 50
SEED ?=
MINUTES ?=
REAL_TIME ?=

chaos: $(STAMP) ## Kill, stop, cut off and fill up real jobs at random: KIND=zookeeper ROUNDS=50 SEED=1 REAL_TIME=1
	PYTHONPATH=src:. $(PY) -m tests.chaos --kind $(KIND) --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(REAL_TIME),--real-time)

# Atheris has no release for every Python, so it is no part of the lock and has an environment beside the other one.
TARGETS ?=
SECONDS_EACH ?= 60
FUZZER := .fuzz/python

$(FUZZER): $(STAMP) requirements-fuzz.txt
	$(PY) -m uv venv --clear --python $(PY) $@
	$(PY) -m uv pip install --python $@ -r requirements-fuzz.txt

fuzz: $(FUZZER) ## Fuzz every parser with coverage guidance, and add it to the table: MINUTES=40 BESIDE=2, SECONDS_EACH=600 TARGETS=frame
	PYTHONPATH="src:$$($(PY) -c 'import site; print(site.getsitepackages()[0])')" \
		$(FUZZER)/bin/python -m tests.fuzz.campaign --seconds $(SECONDS_EACH) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(BESIDE),--beside $(BESIDE)) $(TARGETS)

$(CLASSES): $(STAMP) tests/programs/java_archive.py
	-$(PY) -m tests.programs.java_archive

$(KAFKA) $(YARN): $(VENV)/%/.done: requirements-%.lock scripts/jars.py $(STAMP)
	-$(PY) scripts/jars.py $*

$(REGISTRY): $(STAMP) scripts/schema_registry.py
	-$(PY) scripts/schema_registry.py

$(PYTHONS): $(STAMP) scripts/newest_python.py
	-$(PY) scripts/newest_python.py

# The first import of a test rewrites its assertions; processes that begin together would each do it for all tests.
compile-tests: $(STAMP)
	-$(PY) -m pytest tests --collect-only -p no:cacheprovider >/dev/null

downloads: $(CLASSES) $(KAFKA) $(YARN) $(REGISTRY) $(PYTHONS) ## Bring the brokers and runtimes that make test-all needs

test: $(STAMP) $(CLASSES) $(KAFKA) ## Run what a contributor runs: real Spark, real servers where there are any (9 minutes)
	failed=0; \
	$(PYTEST) tests --ignore $(ON_SPARK) -n 4 -m "$(SHORT)" || failed=$$?; \
	$(PYTEST) $(ON_SPARK) -n 2 -m "$(SHORT)" || failed=$$?; \
	exit $$failed

test-all: $(STAMP) downloads ## Run all tests but those of make soak (an hour on two cores)
	failed=0; \
	$(PYTEST) tests --ignore $(ON_SPARK) -n 4 -m "$(ALL)" --durations 40 || failed=$$?; \
	LONG_TESTS_UNTIL=$${LONG_TESTS_ON_SPARK_UNTIL:-inf} \
		$(PYTEST) $(ON_SPARK) -n 2 -m "$(ALL)" --durations 40 || failed=$$?; \
	exit $$failed

durations: ## Run all tests, and store how long each took: make test leaves out those of more than 0.8 seconds
	STORE_DURATIONS=1 $(MAKE) test-all

test-again: $(STAMP) ## Run again what failed in the last run
	$(PY) -m pytest tests -m "$(ALL)" --last-failed --last-failed-no-failures none -v

test-nojvm: $(STAMP) ## Run those of `make test` that need no JVM and no other server
	$(PYTEST) tests -n 4 -m "$(SHORT) and not spark and not services"

test-spark: $(STAMP) $(CLASSES) $(KAFKA) ## Run the tests on real PySpark; SPARK=3.5.9 for another version
	$(PYTEST) tests -n 2 -m "spark and not soak"

test-newest: ## Run test-nojvm with a wheel and the newest dependencies that pyproject.toml allows; SPARK=4.3.0 runs test-spark
	$(MAKE) DEPENDENCIES=newest $(if $(SPARK),test-spark,test-nojvm)

test-oldest: ## The same with the oldest dependencies
	$(MAKE) DEPENDENCIES=oldest $(if $(SPARK),test-spark,test-nojvm)

coverage: $(STAMP) ## Measure what the tests of `make test-nojvm` cover
	$(PYTEST) tests -n 4 -m "$(SHORT) and not spark and not services" $(COVERED)
	$(PY) scripts/least_covered.py

lint: $(STAMP) ## Check style (ruff)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

workflows: ## Check the workflows of GitHub (actionlint; it needs Go)
	go run $(ACTIONLINT)

types: $(STAMP) ## Check types (mypy --strict on src and tests/contract)
	$(VENV)/bin/mypy

layers: $(STAMP) ## Check the import layers of the package
	$(VENV)/bin/lint-imports

release: $(STAMP) $(PYTHONS) ## Build and check sdist, wheel and SBOM of this commit in dist/; uploads nothing
	$(PY) scripts/release.py

lock: $(STAMP) ## Renew the lock files from pyproject.toml
	bash scripts/lock.sh

# uv does not read pip's configuration: where only that leads out, pip installs.
$(DOCS)/.done: requirements-docs.lock requirements-mermaid.lock scripts/jars.py $(STAMP)
	$(PY) -m venv --clear $(DOCS)
	$(PY) -m uv pip install --quiet --python $(DOCS)/bin/python --require-hashes -r $< 2>/dev/null || \
		$(DOCS)/bin/pip install --quiet --require-hashes -r $<
	$(DOCS)/bin/python scripts/jars.py mermaid
	touch $@

docs: $(DOCS)/.done ## Build the documentation site into site/; a dead link or anchor fails
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

docs-serve: $(DOCS)/.done ## Show the documentation site on 127.0.0.1:8000 while you write
	$(DOCS)/bin/mkdocs serve --livereload
