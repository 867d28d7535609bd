# Give variables after the verb: make apply PYTHON=venv/bin/python PIN=0.5.22
PIN :=
TREE :=
PYTHON :=
TO :=
READ :=

pin := $(if $(PIN),--pin $(PIN))
where := $(if $(TREE),--tree "$(TREE)") $(if $(PYTHON),--python "$(PYTHON)")
asked := ASKED_BY=make
test_python := .venv/bin/python
python := "$(or $(PYTHON),python3)"
steps := model tokens bf16 fp8 prefix prefill-graph speculation pool kernels verify
no_figures := $(if $(RESULTS),$(if $(wildcard $(RESULTS)/*.json),,none))
bad_steps := $(filter-out $(steps),$(STEP))

.DEFAULT_GOAL := help
.PHONY: help fetch plan apply unapply status verify lock lint check drift rebase doctor \
	venv test test-gpu bench-gpu prove report

help: ## this list
	@sed -n -e 's/^#: \{0,1\}//p' -e 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 14

#: For who serves:
apply: $(if $(strip $(where)),,fetch) ## apply the overlay, finish it, or upgrade it
	@$(asked) scripts/overlay apply $(pin) $(where)

status: ## print the state of the tree
	@$(asked) scripts/overlay status $(pin) $(where)

unapply: ## give every file its pristine bytes back (WHEEL=: from that wheel)
	@$(asked) scripts/overlay unapply $(pin) $(where) $(if $(WHEEL),--from-wheel "$(WHEEL)")

plan: $(if $(strip $(where)),,fetch) ## list what apply would write
	@$(asked) scripts/overlay plan $(pin) $(where)

verify: ## status, the contract, then every hook point
	@$(asked) scripts/overlay verify $(pin) $(where)

doctor: ## print what of an installation is well, and how to fix the rest (PYTHON=)
	$(if $(TREE),$(error TREE=$(TREE) is not for doctor: name an interpreter with PYTHON=))
	@$(asked) scripts/doctor $(pin) $(if $(PYTHON),--python "$(PYTHON)")

prove: ## compare stock, compact and BF16 on this card (MODEL=; default: a small one)
	@$(python) bench/prove $(if $(MODEL),"$(MODEL)")

fetch: ## fetch the pinned wheel and unpack it to build/sglang-<release>
	@$(asked) scripts/overlay fetch $(pin)

#:
#: For who maintains:
test: venv ## everything that needs no GPU
	@$(test_python) -m pytest --ignore=tests/gpu -n auto --dist loadfile -rs

test-gpu: ## what needs a GPU, with PYTHON= that has torch and flashinfer, to tests/gpu/results
	@machine=$$($(python) tests/gpu/machine.py) || exit; \
	results=tests/gpu/results/$$machine.xml; \
	$(python) -m pytest tests/gpu --junitxml=$$results; code=$$?; \
	sed -i -e 's/ hostname="[^"]*"//' -e 's|$(CURDIR)/||g' $$results; exit $$code

bench-gpu: ## measure on this host to out/results, in steps that can be resumed (STEP=)
	$(if $(bad_steps),$(error STEP=$(bad_steps) is no step: use some of $(steps)))
	@PYTHON=$(python) bench/gpu.sh $(or $(STEP),$(steps))

report: ## write the tables and pictures of the documents (RESULTS=; default: bench/results)
	$(if $(no_figures),$(error RESULTS=$(RESULTS) holds no figures: name a folder that bench-gpu filled))
	@$(python) -m bench.report $(if $(RESULTS),--results "$(RESULTS)")
	@$(python) -m tests.gpu.report

lock: ## write the pin's lock again, and patches/earlier
	@$(asked) scripts/carry lock $(pin)

lint: ## check the form of the patches
	@$(asked) scripts/carry lint $(pin)

check: ## lint, round trip, the lock's difference, and the contract on the pin's own release
	@$(asked) scripts/carry check $(pin)
	@$(asked) scripts/carry drift $(pin) --to $(or $(PIN),$(file <patches/default))

# 10 says that patches moved, which is no failure where a report or a new pin was asked for.
moved := code=$$?; [ $$code = 10 ] || exit $$code
drift: ## what a newer release would break (TO=)
	@$(asked) scripts/carry drift $(pin) $(if $(TO),--to "$(TO)") || { $(moved); }

rebase: ## carry the pin to another release (TO=; READ=1: you have read what changed)
	@$(asked) scripts/carry rebase $(pin) $(if $(TO),--to "$(TO)") $(if $(READ),--read) || \
	{ $(moved); [ -f "patches/$(TO)/lock.toml" ] || exit $$code; }

venv: ## make the test environment .venv (PYTHON=; default: python3)
	@PYTHON="$(PYTHON)" ci/venv.sh

#:
#: Variables:
#:   PIN=RELEASE   the pinned release (default: patches/default)
#:   TREE=DIR      a folder that holds sglang/ or python/sglang/ (default: build/sglang-<release>)
#:   PYTHON=EXE    an interpreter: the sglang that it imports, or what runs a test or a measurement
#:   WHEEL=FILE    the pinned wheel, for unapply of edited files
#:   TO=RELEASE    a release or a folder with a tree, for drift and rebase
#:   READ=1        for rebase: you have read what changed, and the overlay fits it
#:   STEP=NAMES    steps of bench-gpu        MODEL=DIR  the checkpoint of prove
#:   RESULTS=DIR   the figures of report
