"""Swap, train, save, load, fold and export models of timm and transformers, and record the results.

    python tools/drop_in.py                 all models; their table is results/drop_in.md
    python tools/drop_in.py resnet18 bert   some of them, without the table

Each model is small and has random weights. After each step, outputs are compared. It needs timm, transformers and
torchvision besides hullo, like `tools/swap_models`. A model that cannot be exported before the swap is not exported
after it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hullo

sys.path.insert(0, str(Path(__file__).parent / "swap_models"))
import timm_models
import torchvision_models
import transformers_models
from watch import difference, tensors

ROOT = Path(__file__).parents[1]
STEPS = ("swapped", "trained", "saved", "loaded", "folded", "exported")

TIMM = (
    "beit_base_patch16_224", "cait_xxs24_224", "convnext_atto", "convnextv2_atto", "cs3darknet_s",
    "deit_tiny_distilled_patch16_224", "densenet121", "edgenext_xx_small", "efficientnet_b0", "ese_vovnet19b_slim_dw",
    "fbnetc_100", "flexivit_small", "gernet_s", "mixnet_s", "mnasnet_small", "mobilenetv2_035", "repvgg_a0",
    "tinynet_e", "vit_relpos_small_patch16_224", "xcit_nano_12_p8_224",
)  # fmt: skip
TRANSFORMERS = (
    "albert", "apertus", "bart", "bert", "bloom", "deit", "distilbert", "electra", "falcon", "gemma", "gpt2",
    "gpt_neox", "llama", "mistral", "nanochat", "opt", "phi3", "roberta", "stablelm", "vit",
)  # fmt: skip


@dataclass
class Outcome:
    """Hold the result for a model: the number of hulls, the completed steps, and the first failure."""

    library: str
    name: str
    hulls: int = 0
    done: list[str] = field(default_factory=list)
    failure: str = ""
    seconds: float = 0.0


def cases(names: list[str]) -> Iterator[Any]:
    torchvision_models.load()
    by_name = {case.name: case for module in (timm_models, transformers_models) for case in module.cases()}
    for name in names or [*TIMM, *TRANSFORMERS]:
        yield by_name[name]


def outputs(model: nn.Module, inputs: Any) -> list[Tensor]:
    """Return the tensors that a model returns in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return list(tensors(call(model, inputs)))


def call(model: Callable[..., Any], inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def expect_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    if (found := difference(actual, expected)) > 1e-3:
        raise ValueError(f"outputs differ by {found:.2g}")


def examine(case: Any) -> Outcome:
    """Run all steps for one model, up to the first that fails."""
    outcome, start = Outcome(case.library, case.name), time.perf_counter()
    torch.manual_seed(0)
    step = "built"
    try:
        model, inputs = case.build(), case.inputs()
        before = outputs(model, inputs)
        can_export = _exports(model, inputs)
        state: Any = before
        for step, part in zip(STEPS, (_swap, _train, _save, _load, _fold, _export), strict=True):
            if step == "exported" and not can_export:
                continue
            state = part(case, model, inputs, state)
            outcome.done.append(step)
        outcome.hulls = len(hullo.summary(model).hulls)
    except Exception as error:
        outcome.failure = f"{step}: {type(error).__name__}: {str(error).splitlines()[0][:160]}"
    outcome.seconds = time.perf_counter() - start
    return outcome


def _swap(case: Any, model: nn.Module, inputs: Any, before: Any) -> Any:
    hullo.replace_activations(model, example_inputs=inputs)
    expect_same(outputs(model, inputs), before)


def _train(case: Any, model: nn.Module, inputs: Any, state: Any) -> Any:
    groups = hullo.parameter_groups(model, lr=1e-3, weight_decay=1e-2, coefficient_lr_scale=10)
    optimizer = torch.optim.AdamW(groups)
    start = [parameter.detach().clone() for parameter in hullo.coefficient_parameters(model)]
    for _ in range(3):
        optimizer.zero_grad()
        loss = sum(tensor.square().mean() for tensor in tensors(call(model.train(), inputs)))
        loss.backward()
        optimizer.step()
    if not bool(torch.as_tensor(loss).isfinite()):
        raise ValueError(f"the loss is {loss}")
    moved = [not torch.equal(now, then) for now, then in zip(hullo.coefficient_parameters(model), start, strict=True)]
    if not any(moved):
        raise ValueError("no coefficient has changed")


def _save(case: Any, model: nn.Module, inputs: Any, state: Any) -> Any:
    folder = tempfile.TemporaryDirectory()
    if case.library == "transformers":
        model.save_pretrained(folder.name)
    else:
        torch.save(model.state_dict(), Path(folder.name) / "model.pt")
    return folder


def _load(case: Any, model: nn.Module, inputs: Any, folder: Any) -> Any:
    path = Path(folder.name)
    if case.library == "transformers":
        from safetensors.torch import load_file

        loaded = _plain_class(model).from_pretrained(path)
        hullo.restore(loaded, load_file(path / "model.safetensors"))
    else:
        saved = torch.load(path / "model.pt", weights_only=True)
        loaded = hullo.restore(case.build(), saved)
        loaded.load_state_dict(saved)
    expect_same(outputs(loaded, inputs), outputs(model, inputs))
    folder.cleanup()


def _plain_class(model: nn.Module) -> Any:
    """Return the class of a model before the swap; rewritten code is in a derived class."""
    return next(cls for cls in type(model).__mro__ if "_hullo_written" not in vars(cls) and cls.__name__ != "Rewritten")


def _fold(case: Any, model: nn.Module, inputs: Any, state: Any) -> Any:
    folded = hullo.fold(model, example_inputs=inputs)
    if any(isinstance(module, hullo.Hull) for module in folded.modules()):
        raise ValueError("a hull is left")
    expect_same(outputs(folded, inputs), outputs(model, inputs))


def _exports(model: nn.Module, inputs: Any) -> bool:
    try:
        _exported(model.eval(), inputs)
    except Exception:
        return False
    return True


def _exported(model: nn.Module, inputs: Any) -> Any:
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, dict) else (tuple(inputs), {})
    with torch.no_grad():
        return torch.export.export(model, args, kwargs, strict=False).module()


def _export(case: Any, model: nn.Module, inputs: Any, state: Any) -> Any:
    program = _exported(model.eval(), inputs)
    with torch.no_grad():
        expect_same(list(tensors(call(program, inputs))), outputs(model, inputs))


def table(outcomes: list[Outcome]) -> str:
    lines = [f"| model | hulls | {' | '.join(STEPS)} |", f"| :--- | ---: |{' :---: |' * len(STEPS)}"]
    for item in outcomes:
        cells = [
            "yes" if step in item.done else item.failure if item.failure.startswith(step) else "-" for step in STEPS
        ]
        name = f"{item.library}/{item.name}".replace("_", r"\_")
        lines.append(f"| {name} | {item.hulls} | {' | '.join(cells)} |")
    git = shutil.which("git") or "git"
    commit = subprocess.check_output([git, "rev-parse", "--short=12", "HEAD"], text=True, cwd=ROOT)  # noqa: S603
    import timm
    import transformers

    versions = f"torch {torch.__version__}, timm {timm.__version__}, transformers {transformers.__version__}"
    python = f"Python {platform.python_version()}"
    return "\n".join(
        [*lines, "", f"<sub>On a CPU, {python}, {versions}, hullo {hullo.__version__} ({commit.strip()}).</sub>"]
    )


def main(names: list[str]) -> int:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    outcomes = []
    for case in cases(names):
        outcomes.append(examine(case))
        last = outcomes[-1]
        said = f"{last.hulls} hulls, {len(last.done)} steps, {last.seconds:.1f} s {last.failure}"
        print(f"{last.library}/{last.name}: {said}", flush=True)
    if not names:
        (ROOT / "results" / "drop_in.md").write_text(f"{table(outcomes)}\n")
    return sum(bool(item.failure) for item in outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
