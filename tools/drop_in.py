"""Swap, train, save, load, fold and export models of timm and transformers, and record the results.

    python tools/drop_in.py                 all models; their table is results/drop_in.md
    python tools/drop_in.py resnet18 bert   some of them, without the table

Each model is small and has random weights. After each step, outputs are compared. It needs timm, transformers and
torchvision besides hullo, like `tools/swap_models`. A model that cannot be exported before the swap is not exported
after it.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hullo
from hullo.lab.spec.environment import environment
from hullo.surgery.write import written

sys.path.insert(0, str(Path(__file__).parent / "swap_models"))
import timm_models
import torchvision_models
import transformers_models
from checks import Build, Case
from watch import difference, loss, tensors

ROOT = Path(__file__).parents[1]
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


STEPS = ("swapped", "trained", "saved", "loaded", "folded", "exported")


def expect_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    if (found := difference(actual, expected)) > 1e-3:
        raise ValueError(f"outputs differ by {found:.2g}")


def train(build: Build) -> None:
    """Run three steps, in which coefficients must change."""
    groups = hullo.parameter_groups(build.model, lr=1e-3, weight_decay=1e-2, coefficient_lr_scale=10)
    optimizer = torch.optim.AdamW(groups)
    start = [parameter.detach().clone() for parameter in hullo.coefficient_parameters(build.model)]
    for _ in range(3):
        optimizer.zero_grad()
        value = loss(build.outputs("train"))
        value.backward()
        optimizer.step()
    if not value.isfinite():
        raise ValueError(f"the loss is {value}")
    if all(map(torch.equal, hullo.coefficient_parameters(build.model), start)):
        raise ValueError("no coefficient has changed")


def save_and_load(build: Build, case: Case, folder: Path) -> Iterator[nn.Module | None]:
    """Yield after the model is saved, and yield what was loaded."""
    if case.library == "transformers":
        from safetensors.torch import load_file

        build.model.save_pretrained(folder)
        yield None
        plain: Any = written(build.model)[0]
        loaded = plain.from_pretrained(folder)
        yield hullo.restore(loaded, load_file(folder / "model.safetensors"))
    else:
        torch.save(build.model.state_dict(), folder / "model.pt")
        yield None
        saved = torch.load(folder / "model.pt", weights_only=True)
        loaded = hullo.restore(case.build(), saved)
        loaded.load_state_dict(saved)
        yield loaded


def export(build: Build) -> list[Tensor]:
    """Return the outputs of the exported model."""
    args, kwargs = ((), dict(build.inputs)) if isinstance(build.inputs, dict) else (tuple(build.inputs), {})
    with torch.no_grad():
        program = torch.export.export(build.model.eval(), args, kwargs, strict=False).module()
        return list(tensors(program(*args, **kwargs)))


def take_steps(build: Build, case: Case, folder: Path) -> Iterator[str]:
    """Yield a word for each step that succeeds."""
    before = build.outputs("eval")
    try:
        exports = bool(export(build))
    except Exception:  # torch.export does not support the model
        exports = False
    hullo.replace_activations(build.model, example_inputs=build.inputs)
    expect_same(build.outputs("eval"), before)
    yield "yes"
    train(build)
    yield "yes"
    after = build.outputs("eval")
    for loaded in save_and_load(build, case, folder):
        if loaded:
            expect_same(build.outputs("eval", loaded), after)
        yield "yes"
    folded = hullo.fold(build.model, example_inputs=build.inputs)
    if any(isinstance(module, hullo.Hull) for module in folded.modules()):
        raise ValueError("a hull is left")
    expect_same(build.outputs("eval", folded), after)
    yield "yes"
    if exports:
        expect_same(export(build), after)
    yield "yes" if exports else "-"


def examine(case: Case) -> tuple[int, list[str]]:
    """Run all steps for one model, up to the first that fails; return the number of hulls, and a word per step."""
    build, said = Build(case, torch.float32), []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for word in take_steps(build, case, Path(folder)):
                said.append(word)
        except Exception as error:
            said.append(f"{type(error).__name__}: {str(error).splitlines()[0][:160]}")
    return len(hullo.summary(build.model).hulls), said + ["-"] * (len(STEPS) - len(said))


def cases(names: list[str]) -> Iterator[Case]:
    torchvision_models.load()
    by_name = {case.name: case for module in (timm_models, transformers_models) for case in module.cases()}
    yield from (by_name[name] for name in names or [*TIMM, *TRANSFORMERS])


def main(names: list[str]) -> int:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    lines, failed = [f"| model | hulls | {' | '.join(STEPS)} |", f"| :--- | ---: |{' :---: |' * len(STEPS)}"], 0
    for case in cases(names):
        hulls, said = examine(case)
        failed += any(word not in ("yes", "-") for word in said)
        escaped = f"{case.library}/{case.name}".replace("_", r"\_")
        lines.append(f"| {escaped} | {hulls} | {' | '.join(said)} |")
        print(lines[-1], flush=True)
    if not names:
        import timm
        import transformers

        versions = f"timm {timm.__version__}, transformers {transformers.__version__}, {environment('a CPU')}"
        (ROOT / "results" / "drop_in.md").write_text("\n".join([*lines, "", f"<sub>On {versions}.</sub>", ""]))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
