"""Swap the activations of several hundred models, and record the results.

    python tools/swap_models                      the models without a result
    python tools/swap_models --again              all of them
    python tools/swap_models 'timm/re*' 'monai/*'   models whose library and name match a pattern, again
    python tools/blocks.py                        write the tables of docs/models.md

It needs transformers, timm, diffusers, torchvision and the packages of other.txt besides hullo: in an environment
with PyTorch, `pip install --no-deps` them and what they import. Weights are random; nothing is downloaded. If the
compiled operators of torchvision or torchaudio do not match the build of PyTorch, their Python parts are enough (delete
torchaudio/lib). Results are lines of results/models.jsonl; an interrupted run continues where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fnmatch
import functools
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
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import torch
from checks import Case, Result, examine
from torch import nn
from torchvision_models import load

import hullo

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "models.jsonl"
LIBRARIES = ("transformers", "diffusers", "other", "timm", "torchvision")
LIMIT = 600  # seconds per model


def judge(case: Case) -> Result:
    """Examine a model in a process of its own, which may crash or hang."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=lambda: theirs.send(examine(case)))
    start = time.perf_counter()
    process.start()
    theirs.close()
    result = Result(case.library, case.name, "wrong", wrong=[f"it died, or ran for more than {LIMIT} s"])
    with contextlib.suppress(EOFError):
        result = ours.recv() if ours.poll(LIMIT) else result
    process.kill()
    process.join()
    result.seconds = round(time.perf_counter() - start, 1)
    result.setting = _setting(case.library)
    return result


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
    options = parser.parse_args()
    recorded = [Result(**json.loads(line)) for line in RESULTS.read_text().splitlines()]
    results = {f"{result.library}/{result.name}": result for result in recorded}
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # and none in a process that is forked
    load()
    _warm_up()
    known = (case for name in LIBRARIES for case in importlib.import_module(f"{name}_models").cases())
    for case in known:
        if _is_wanted(case, options, results):
            result = results[f"{case.library}/{case.name}"] = judge(case)
            _show(result)
            RESULTS.write_text("".join(json.dumps(asdict(result)) + "\n" for result in results.values()))
    sys.exit(any(result.verdict == "wrong" for result in results.values()))


def _is_wanted(case: Case, options: argparse.Namespace, results: Mapping[str, Result]) -> bool:
    key = f"{case.library}/{case.name}"
    if options.patterns:
        return any(fnmatch.fnmatch(key, pattern) for pattern in options.patterns)
    return options.again or key not in results


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
