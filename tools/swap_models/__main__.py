"""Swap the activations of several hundred models, and record the results.

    python tools/swap_models                      the models without a result
    python tools/swap_models --again              all of them
    python tools/swap_models 'timm/re*' 'monai/*'   models whose library and name match a pattern, again
    python tools/swap_models --table              only write the tables of docs/models.md

It needs transformers, timm, diffusers, torchvision and the packages of other_models.py besides hullo: in an environment
with PyTorch, `pip install --no-deps` them and what they import. Weights are random; nothing is downloaded. If the
compiled operators of torchvision or torchaudio do not match the build of PyTorch, their Python parts are enough (delete
torchaudio/lib). Results are lines of results/models.jsonl; an interrupted run continues where it stopped.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import functools
import gc
import importlib
import json
import multiprocessing
import os
import pickle
import platform
import subprocess
import sys
import time
import warnings
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import torch
from checks import Case, Result, examine
from report import read, write
from torch import nn
from torchvision_models import load

import hullo

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "models.jsonl"
PAGE = ROOT / "docs" / "models.md"
LIBRARIES = ("transformers", "diffusers", "other", "timm", "torchvision")
LIMIT = 600  # seconds per model


def judge(case: Case) -> Result:
    """Examine a model in its own process, so that a crash or an endless loop does not stop the others."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    start = time.perf_counter()
    gc.freeze()  # a collection would copy the memory that the processes share
    process = context.Process(target=lambda: theirs.send(examine(case)))
    process.start()
    theirs.close()
    try:
        found: Result | None = ours.recv() if ours.poll(LIMIT) else None
    except EOFError:
        found = None
    if found is None:
        why = f"no result within {LIMIT} s" if process.is_alive() else "its process died"
        process.kill()
        found = Result(case.library, case.name, "wrong", wrong=[why])
    process.join()
    found.seconds = round(time.perf_counter() - start, 1)
    found.setting = _setting(case.library)
    return found


def _warm_up() -> None:
    """Import here, once for all processes, what a swap imports; without a backward pass, after which none can fork."""
    model = hullo.replace_activations(
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()), example_inputs=torch.ones(2), compare=False
    )
    hullo.fold(copy.deepcopy(pickle.loads(pickle.dumps(model))))  # noqa: S301
    torch.optim.AdamW(model.parameters()).zero_grad()


@functools.cache
def _setting(library: str) -> str:
    """Return the versions of Python and the packages, and the last commit that changed hullo."""
    last = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--abbrev=12", "--", "src"]
    commit = subprocess.run(last, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    changed = subprocess.run(["git", "-C", str(ROOT), "diff", "--quiet", "HEAD", "--", "src"], check=False)  # noqa: S603, S607
    commit += " with changes" if changed.returncode else ""
    own = f"{library} {metadata.version(library)}"
    return f"{own}, torch {torch.__version__}, Python {platform.python_version()}, hullo {hullo.__version__} ({commit})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", help="library/name, with * and ?")
    parser.add_argument("--again", action="store_true", help="all models, also those with a result")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    results = read(RESULTS)
    if not options.table:
        os.environ["HF_HUB_OFFLINE"] = "1"
        warnings.filterwarnings("ignore")
        torch.set_num_threads(1)  # and none in a process that is forked
        load()
        _warm_up()
        for case in (case for name in LIBRARIES for case in importlib.import_module(f"{name}_models").cases()):
            key = f"{case.library}/{case.name}"
            if any(fnmatch.fnmatch(key, item) for item in options.patterns) or (
                not options.patterns and (options.again or key not in results)
            ):
                results[key] = judge(case)
                _show(results[key])
                RESULTS.write_text("".join(json.dumps(asdict(results[item])) + "\n" for item in results))
    write(PAGE, results.values())
    sys.exit(any(result.verdict == "wrong" for result in results.values()))


def _show(result: Result) -> None:
    counts = f"{result.hulls} hulls, {result.gates} gates, {len(result.left)} left"
    print(
        f"{result.verdict:8} {result.library}/{result.name}: {counts}, {result.seconds} s, swap {result.swap} s",
        flush=True,
    )
    for line in [*result.wrong, *filter(None, [result.refusal])]:
        print(f"         {line}", flush=True)


if __name__ == "__main__":
    main()
