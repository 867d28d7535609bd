# PIN=<release> (default: patches/default), TREE=<folder with sglang/> or PYTHON=<interpreter>.
PIN :=
TREE :=
PYTHON :=
TO :=

pin := $(if $(PIN),--pin $(PIN))
where := $(if $(TREE),--tree "$(TREE)") $(if $(PYTHON),--python "$(PYTHON)")
test_python := .venv/bin/python
python := "$(or $(PYTHON),python3)"

.DEFAULT_GOAL := help
.PHONY: help fetch plan apply unapply status verify lock lint check drift rebase doctor \
	venv test test-gpu bench-gpu prove report

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

fetch: ## fetch the pinned wheel and unpack it to build/sglang-<release>
	@scripts/overlay fetch $(pin)

plan: $(if $(strip $(where)),,fetch) ## list what apply would write
	@scripts/overlay plan $(pin) $(where)

apply: $(if $(strip $(where)),,fetch) ## apply the overlay, finish it, or upgrade it
	@scripts/overlay apply $(pin) $(where)

unapply: ## give every file its pristine bytes back (WHEEL=<file>: from that wheel)
	@scripts/overlay unapply $(pin) $(where) $(if $(WHEEL),--from-wheel "$(WHEEL)")

status: ## print the state of the tree
	@scripts/overlay status $(pin) $(where)

verify: $(if $(PYTHON),,venv) ## status, then every hook point
	@scripts/overlay verify $(pin) $(where)

lock: ## write the pin's lock again, and patches/earlier
	@scripts/carry lock $(pin)

lint: ## check the form of the patches
	@scripts/carry lint $(pin)

check: ## lint, round trip, the lock's difference, and the contract on the pin's own release
	@scripts/carry check $(pin)
	@scripts/carry drift $(pin) --to $(or $(PIN),$(file <patches/default))

drift: ## what a newer release would break (TO=<release or folder>)
	@scripts/carry drift $(pin) $(if $(TO),--to "$(TO)")

rebase: ## carry the pin to TO=<release or folder> (READ=1: you have read what changed)
	@scripts/carry rebase $(pin) $(if $(TO),--to "$(TO)") $(if $(READ),--read)

doctor: ## print what of an installation is well, and how to fix the rest (PYTHON=)
	@scripts/doctor $(pin) $(if $(PYTHON),--python "$(PYTHON)")

venv:
	@PYTHON="$(PYTHON)" ci/venv.sh

test: venv ## everything that needs no GPU
	@$(test_python) -m pytest --ignore=tests/gpu -n auto --dist loadfile -rs

test-gpu: ## what needs a GPU, with PYTHON= that has torch and flashinfer, to tests/gpu/results
	@machine=$$($(python) tests/gpu/machine.py) || exit; \
	results=tests/gpu/results/$$machine.xml; \
	$(python) -m pytest tests/gpu --junitxml=$$results; code=$$?; \
	sed -i -e 's/ hostname="[^"]*"//' -e 's|$(CURDIR)/||g' $$results; exit $$code

bench-gpu: ## measure on this host to out/results, in steps that can be resumed (STEP=<one of them>)
	@PYTHON=$(python) bench/gpu.sh $(or $(STEP),model tokens bf16 fp8 prefix prefill-graph pool kernels verify)

prove: ## compare stock, compact and BF16 on this card (MODEL=<checkpoint>; default: a small one)
	@$(python) bench/prove $(if $(MODEL),"$(MODEL)")

report: ## write the tables and pictures of the documents (RESULTS=<folder>, default bench/results)
	@$(python) -m bench.report $(if $(RESULTS),--results "$(RESULTS)")
	@$(python) -m tests.gpu.report
