# Every target prepares what it needs (.ci/environment: virtual environment, locked dependencies, Java) and is quick
# the second time. Only Python 3.11+, make and git have to be there beforehand.

.DEFAULT_GOAL := help
SEEDS ?= 1000
ROUNDS ?= 10
.PHONY: reference docs chaos coverage explore fuzz mutants simulate demo test check bench clean help lock
ENVIRONMENT := .ci/environment

demo: ## start a cluster, move 336,776 flights through it, kill a broker, check everything in Spark
	@$(ENVIRONMENT) python -P -m magnetar.cluster.demo --output build/demo

test: ## all tests: unit, simulation, service, integration (Ray, Spark, the official Pulsar client); under 10 minutes
	@$(ENVIRONMENT) .ci/test

check: ## the inner loop: ruff, pyright, unit tests, a few seeds of the simulator
	@$(ENVIRONMENT) .ci/check

explore: ## every interleaving of fencing and recovery by few nodes; then known bugs, found with a counter-example
	@$(ENVIRONMENT) python tests/simulation/explore.py

simulate: ## clusters under simulation: SEEDS=1000 sweeps them, SEED=n replays one with its transcript (of some: NODE=)
	@$(ENVIRONMENT) python tests/simulation/run.py $(if $(SEED),--seed $(SEED) $(if $(NODE),--node $(NODE)),--seeds $(SEEDS))

mutants: ## known bugs, switched on one by one: seeds have to find each, and nothing without them; about 8 minutes
	@$(ENVIRONMENT) python tests/simulation/gate.py

coverage: SEEDS = 3000
coverage: ## branches of fencing and recovery that SEEDS=3000 go through, every tenth a whole cluster; about 5 minutes
	@$(ENVIRONMENT) python tests/simulation/coverage_report.py --seeds $(SEEDS)

chaos: ## a cluster on Ray, harmed every 5 s: ROUNDS=10 of a minute; SEED=n draws the same faults
	@$(ENVIRONMENT) python tests/chaos/run.py --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

fuzz: ## every decoder, connection and file format against nearly valid bytes: MINUTES=10 in all, on one core
	@$(ENVIRONMENT) python -P tests/fuzz/run.py --minutes $(or $(MINUTES),10)

bench: ## the benchmark rows, with a plot and bench/results/latest.json; up to 12 minutes
	@$(ENVIRONMENT) python bench/run.py

docs: ## build the documentation, with search, as a site in build/site
	@$(ENVIRONMENT) env NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
	@echo "open build/site/index.html"

reference: ## generate docs/reference/ from the code again
	@$(ENVIRONMENT) python -P tests/tools/generate_reference.py

lock: ## resolve the dependencies of pyproject.toml anew into requirements.lock
	@$(ENVIRONMENT) uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes --upgrade \
		--custom-compile-command "make lock" pyproject.toml --output-file requirements.lock

clean: ## remove the virtual environment and everything built, cached or measured
	@case "$$(readlink .venv)" in */magnetar/venv-*) rm -rf "$$(readlink .venv)";; esac
	rm -rf .venv build dist magnetar.egg-info bench/results .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@sed -n 's/^\([a-z]*\): ## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16
