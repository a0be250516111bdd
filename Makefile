# The project's commands; `make help` lists them.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test lab notebooks docs bench pins lock clean distclean

VENV ?= .venv
PYTHON ?=
PRESET ?= lab
LABS ?=
# Test files at once: one a core, at most 3, each of which may hold 6 GB, and the one of the recipes' own
# shape 11: its tests are skipped, by name, where they are not free.
JOBS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 2 ? 2 : cores > 3 ? 3 : cores)))
# Not empty: the slow tests as well (JupyterLab in a browser, several ranks, mutations, races), but
# for those marked long, which take minutes or repeat a shorter test; ALL=long: these too.
ALL ?=
ARGS ?=
export VENV PYTHON
# Python does not start with that of another installation.
unexport PYTHONHOME

ENVIRONMENT := sh scripts/environment.sh
# By the shell, from the environment: a path may hold spaces and quotes.
BIN := "$${VENV:-.venv}"/bin

LEFT_OUT := $(if $(ALL),$(if $(filter long,$(ALL)),,long),slow)
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(if $(LEFT_OUT),-m 'not $(LEFT_OUT)') \
    --nbval-lax --nbval-current-env --nbval-cell-timeout 300
# Each part in new processes: a graph that MindSpore compiles takes the longer the more it has compiled
# before; after half an hour tests took 2.7 times as long as in a new process. The third is what the first
# two leave; the last, of several ranks, needs all cores: in the others a process computes on one. Ranks
# wait for each other: with one file more at once it took 364 s instead of 498, with two more 425.
STEPS := tests/steps tests/training tests/base
ALGORITHMS := tests/algorithms tests/recipes tests/upstream
PARTS := "$(STEPS)" "$(ALGORITHMS)" "tests notebooks $(addprefix --ignore=,$(STEPS) $(ALGORITHMS))"
RANKS := tests/*/test_*on_ranks.py
ONE_MORE := $(shell expr $(JOBS) + 1 2>/dev/null || echo $(JOBS))
# The third part often waits, too, for kernels, a browser and time limits.
WAITING := $(if $(filter 2,$(JOBS)),3,$(JOBS))
# What compares speed and memory. The races in benchmarks/, stored, take up to an hour each.
BENCH ?= memory step_times subspace

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "PYTHON=/path/to/python3.12 chooses the Python that .venv is made with (3.11 or 3.12)."
	@echo "ARGS=... is handed on: make run ARGS='--device CPU', make test ARGS='-k packaging'."

run: ## install if needed, then run the labs: PRESET=smoke|lab|paper (lab), LABS="01 02" (all)
	@$(ENVIRONMENT) base
	@$(BIN)/labkit run --preset $(PRESET) $(ARGS) $(LABS)

test: ## install if needed, then the tests, and every notebook at preset smoke; ALL=1: the slow tests too; ALL=long: all
	@$(ENVIRONMENT) $(if $(ALL),all,test)
	@status=5; for part in $(PARTS) $(if $(ALL),"$(RANKS)"); do \
	    case $$part in *on_ranks*) more='-n $(ONE_MORE)' ;; \
	        *notebooks*) more='--ignore-glob=*on_ranks.py -n $(WAITING)' ;; \
	        *) more='--ignore-glob=*on_ranks.py' ;; esac; \
	    LABKIT_PRESET=smoke $(PYTEST) $$part $$more $(ARGS); code=$$?; \
	    case $$code in 5) ;; 2) exit 2 ;; *) [ $$status -eq 1 ] || status=$$((code ? 1 : 0)) ;; esac; \
	done; exit $$status

lab: ## open JupyterLab on your own copies of the notebooks, in work/, on this machine only
	@$(ENVIRONMENT) base
	@$(BIN)/labkit lab $(ARGS)

notebooks: ## execute the committed notebooks whose inputs changed (ARGS=--force: all of them)
	@$(ENVIRONMENT) base
	@$(BIN)/python -m scripts.notebooks $(ARGS)

docs: ## build the book, in English and Chinese, into build/book: open build/book/index.html
	@$(ENVIRONMENT) docs
	@$(BIN)/python -m scripts.book

bench: ## measure speed and memory, side by side; the figures go to runs/bench
	@$(ENVIRONMENT) test
	@status=0; for name in $(BENCH); do echo "== $$name"; \
	    $(BIN)/python benchmarks/$$name.py $(ARGS) || status=1; done; exit $$status

pins: ## renew constraints.txt and environment.yml with uv: the newest versions that pyproject.toml allows
	@sh scripts/pins.sh renew

lock: ## write uv.lock from constraints.txt, for `uv sync --extra labs`; it names your package index, so git ignores it
	@sh scripts/pins.sh lock

clean: ## remove what runs and tools left behind: runs, builds, caches; not .venv, not datasets/, not work/
	@rm -rf runs build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis kernel_meta .ipynb_checkpoints
	@find labkit tests benchmarks data_scripts examples notebooks scripts -type d \( -name __pycache__ \
	    -o -name .ipynb_checkpoints -o -name kernel_meta \) -prune -exec rm -rf {} +
	@rm -f rank_[0-9]*/om/analyze_fail.ir && rmdir rank_[0-9]*/om rank_[0-9]* 2>/dev/null || true

distclean: clean ## clean, and remove .venv as well, if `make` has made it
	@$(ENVIRONMENT) remove
