# Every target first prepares what it needs (.ci/environment: virtual environment, locked dependencies, Java). This is
# quick the second time. Only Python 3.11+, make and git must be installed before.

.DEFAULT_GOAL := help
SEEDS ?= 1000
ROUNDS ?= 10
.PHONY: parity growth reference docs chaos coverage explore fuzz mutants simulate scale demo test check bench bench-nodes clean help helm lock
ENVIRONMENT := .ci/environment

demo: ## start a cluster, move 336,776 flights through it, kill a broker, check the result in Spark
	@$(ENVIRONMENT) python -P -m magnetar.cluster.demo --output build/demo

test: ## run all tests: unit, simulation, service, integration (Ray, Spark, the official client); about 40 minutes
	@$(ENVIRONMENT) .ci/test

check: ## check a change: ruff, pyright, unit tests, a few seeds of the simulator
	@$(ENVIRONMENT) .ci/check

explore: ## explore every interleaving of fencing and recovery with few nodes; then find known bugs
	@$(ENVIRONMENT) python tests/simulation/explore.py

simulate: ## simulate SEEDS=1000 clusters, others each time (FIRST=n: these again); SEED=n: one, with its transcript (NODE=broker-1)
	@$(ENVIRONMENT) python tests/simulation/run.py \
		$(if $(SEED),--seed $(SEED) $(if $(NODE),--node $(NODE)),--seeds $(SEEDS) $(if $(FIRST),--first $(FIRST)))

mutants: ## switch known bugs on one by one: simulated seeds must find each, and find nothing without them; over an hour
	@$(ENVIRONMENT) python tests/simulation/gate.py

scale: ## 100 brokers, 100 bookies and TOPICS=1000000 as metadata only: messages and operations of each event
	@$(ENVIRONMENT) python tests/simulation/scale.py --topics $(or $(TOPICS),1000000)

coverage: SEEDS = 3000
coverage: ## list the branches of fencing and recovery that SEEDS=3000 reach, every tenth a whole cluster; about 12 minutes
	@$(ENVIRONMENT) python tests/simulation/coverage_report.py --seeds $(SEEDS)

chaos: ## run a cluster on Ray with a fault every 5 s: ROUNDS=10 of a minute; SEED=n draws the same; NODES=4 cuts nodes off
	@$(ENVIRONMENT) python tests/chaos/run.py --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) $(if $(NODES),--nodes $(NODES))

growth: ## let partitioned topics grow under load, with the official client connected, away and through crashes: RUNS=10
	@$(ENVIRONMENT) python tests/chaos/growth.py --runs $(or $(RUNS),10)

fuzz: ## send nearly valid bytes to every decoder, connection and file format: MINUTES=10 in all, on one core
	@$(ENVIRONMENT) python -P tests/fuzz/run.py --minutes $(or $(MINUTES),10)

parity: ## record what a real Pulsar says to the scenarios (needs Java 17 and Maven): SCENARIO=name records one
	@$(ENVIRONMENT) python -P tests/parity/record.py $(SCENARIO)

bench: ## run the benchmark rows, with a plot and bench/results/latest.json; up to 14 minutes
	@$(ENVIRONMENT) python bench/run.py

bench-nodes: ## measure what a lost Ray node costs, on four nodes with addresses of their own (as root): ONLY=cut RUNS=10
	@$(ENVIRONMENT) python bench/nodes.py $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS))

docs: ## build the documentation, with search, as a site in build/site
	@$(ENVIRONMENT) properdocs build --strict --quiet --config-file mkdocs.yml
	@echo "build/site/index.html can be opened as a file. The search needs a server, which needs no network:"
	@echo "  python3 -m http.server --bind 127.0.0.1 --directory build/site 8000"

reference: ## generate docs/reference/, docs/FEATURES.md, and the calls that send in both faces of the client, again
	@$(ENVIRONMENT) python -P tests/tools/generate_faces.py
	@$(ENVIRONMENT) python -P tests/tools/generate_reference.py

lock: ## resolve the dependencies of pyproject.toml again into requirements.lock, and those of the image
	@$(ENVIRONMENT) uv pip compile --quiet --universal --python-version 3.11 --extra spark --extra serve --extra avro --extra perf \
		--extra postgresql --extra dev --generate-hashes --upgrade --custom-compile-command "make lock" pyproject.toml \
		--output-file requirements.lock
	@$(ENVIRONMENT) uv pip compile --quiet --universal --python-version 3.11 --extra spark4-ray --generate-hashes --upgrade \
		--custom-compile-command "make lock" pyproject.toml --output-file .ci/spark4.lock
	@$(ENVIRONMENT) uv pip compile --quiet --universal --python-version 3.11 --extra postgresql --extra perf --generate-hashes \
		--constraints requirements.lock --custom-compile-command "make lock" pyproject.toml k8s/requirements.in \
		--output-file k8s/requirements.lock

helm: ## get Helm and kubectl into build/kubernetes: without them, tests of k8s/chart are skipped; 37 MB
	@$(ENVIRONMENT) .ci/kubernetes-tools

clean: ## remove the virtual environment and everything built, cached or measured
	@case "$$(readlink .venv)" in */magnetar/venv-*) rm -rf "$$(readlink .venv)";; esac
	rm -rf .venv build dist magnetar.egg-info bench/results .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## print this list
	@sed -n 's/^\([a-z-]*\): ## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
