VENV := .venv
PYTHON := $(VENV)/bin/python
EXTRAS_lab := lab
EXTRAS_docs := docs,lab,keras
EXTRAS_dev := dev

.PHONY: test check demo docs setup versions
.DEFAULT_GOAL := test

test: check  ## every check and every test, two at a time: many wait for processes, and threads would wait for each other
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: setup  ## formatting, lint, types, and whether tables say what records say
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy & types=$$!; \
	  $(PYTHON) tools/blocks.py --check && wait $$types

demo: $(VENV)/lab  ## twelve LeNet-5 side by side, on the packaged sample: two fixed activations, two learned ones, three seeds
	$(VENV)/bin/hullo reproduce lenet5/fashion-mnist-sample --activation relu --activation tanh \
	  --activation "convex(identity,relu,tanh)" --activation "affine(identity,relu,tanh)" \
	  --seeds 3 --epochs 4 --lr 0.001 --coefficient-lr-scale 10 --device cpu --output demo

docs: $(VENV)/docs  ## the site: site/index.html
	$(PYTHON) -m sphinx --quiet --fail-on-warning docs site

OTHER := .environments/$(WITH)-$(TORCH)
CORE := $(patsubst %,tests/%.py,test_bases test_functional test_modules test_modules_checkpoints test_keras \
  surgery/test_replace population/test_population lab/test_recorder)
versions: setup  ## the wheel in an environment of its own, as in: make versions WITH=python3.11 TORCH=2.10.0
	rm -rf $(OTHER) && $(WITH) -m venv $(OTHER)
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir $(OTHER) .
	$(OTHER)/bin/python -m pip install --quiet torch==$(TORCH) pytest hypothesis "$$(echo $(OTHER)/*.whl)[lab,keras,export]"
	$(OTHER)/bin/python -m pytest -p no:cacheprovider $(CORE)

setup: $(VENV)/dev  ## a virtual environment with everything in it

# Byte code is compiled on all cores: pip would do it on one. Some packages hold templates that do not compile.
$(VENV)/%: pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[$(EXTRAS_$*)]"
	$(PYTHON) -m compileall -qq -j 0 $(VENV)/lib || true
	touch $@
