"""Test that every example runs."""

from __future__ import annotations

import ast
import importlib
import json
import linecache
import re
import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from hullo.lab import data
from hullo.population import images

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a script with arguments in this process, and return what it prints."""
    monkeypatch.delitem(sys.modules, "own_bases", raising=False)  # tests start without the bases that it adds

    def run(script: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_swap_example_learns_and_draws(run: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    image = tmp_path / "curves.png"
    printed = run("swap_transformer_and_cnn.py", str(image), "--steps", "40")
    assert image.read_bytes().startswith(b"\x89PNG")
    accuracies = [float(text) for text in re.findall(r"([\d.]+)% accuracy", printed)]
    assert len(accuracies) == 2
    assert min(accuracies) > 50  # a guess is right in one case of four
    for hull in ("encoder.layers.0.linear1_gelu", "encoder.layers.1.linear1_gelu", "first_relu", "second_tanh"):
        assert hull in printed


def test_kerasnet_example_trains_on_a_few_images(run: Callable[..., str], tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        labels = torch.randint(2, (12, 1), generator=generator)
        pixels = (100 * labels + torch.randint(100, (12, 3072), generator=generator)).byte()  # dark and bright images
        (tmp_path / name).write_bytes(bytes(torch.cat([labels.byte(), pixels], 1).flatten().tolist()))
    options = ["--hull", "convex", "--epochs", "6", "--batch-size", "4", "--val-size", "12", "--device", "cpu"]
    printed = run("kerasnet_cifar10.py", str(tmp_path), *options)
    losses = [float(text) for text in re.findall(r"training loss ([\d.]+)", printed)]
    assert len(losses) == 6
    assert losses[-1] < losses[0] / 2
    rows = re.findall(r"^(\S+) +convex\(identity,relu,tanh\) +([\d. ]+?) *$", printed, re.MULTILINE)
    assert [name for name, _ in rows] == ["features.1", "features.3", "features.7", "features.9", "classifier.2"]
    assert all(sum(map(float, numbers.split())) == pytest.approx(1, abs=0.01) for _, numbers in rows)


def mask(text: str) -> str:
    """Replace numbers, which differ between machines, and every run of spaces by one."""
    return re.sub(r"[+-]?\d[\w.+-]*", "#", " ".join(text.split()))


def text_of(cell: dict[str, Any]) -> str:
    """Return the text that a cell of a notebook shows below its code."""
    outputs = [output.get("data", {"text/plain": output.get("text", ())}) for output in cell["outputs"]]
    return "".join("".join(data["text/plain"]) for data in outputs if "image/png" not in data)


def test_notebook_prints_what_it_shows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib.figure import Figure

    cells = json.loads((EXAMPLES / "tutorial.ipynb").read_text())["cells"]
    notebook = types.ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    printed = ""
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            name, source = f"<cell {number}>", "".join(cell["source"])
            monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
            *body, last = ast.parse(source).body
            exec(compile(ast.Module(body, []), name, "exec", dont_inherit=True), vars(notebook))
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), vars(notebook))
                if not (value is None or isinstance(value, Figure) or source.endswith(";")):
                    print(value)
            else:
                exec(compile(ast.Module([last], []), name, "exec", dont_inherit=True), vars(notebook))
            shown = capsys.readouterr().out
            assert mask(shown) == mask(text_of(cell)), source
            printed += shown
    assert re.search(r"hulls: +(9\d|100)\.\d% of the test points", printed)
    assert "hulls left: 0" in printed
    assert len(notebook.population) == 20


def test_example_network_has_the_papers_number_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    kerasnet = importlib.import_module("kerasnet_cifar10")
    network = kerasnet.KerasNet(torch.nn.ReLU)
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_250_858


def test_example_augments_like_the_laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    kerasnet = importlib.import_module("kerasnet_cifar10")
    image = torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8)
    moves = torch.cartesian_prod(torch.arange(2), torch.arange(-3, 4), torch.arange(-3, 4))
    possible = images.move(image, torch.zeros(len(moves), dtype=torch.long), moves)
    for made in kerasnet.augment(image.expand(40, -1, -1, -1)):
        assert (made == possible).flatten(1).all(1).sum() == 1


SMALL_GPT = ["--layers", "2", "--width", "16", "--length", "8", "--batch", "2"]
STUDIES = {
    "tables": (["--epochs", "1"], "relu", "affine from relu per feature"),
    "convolutions": (["--name", "tiny", "--network", "resnet8", "--epochs", "1"], "relu", "affine from relu"),
    "trained": (
        ["--name", "tiny", "--network", "resnet8", "--before", "1", "--epochs", "1"],
        "relu",
        "affine from relu, rate x10",
    ),
    "language": ([*SMALL_GPT, "--steps", "2"], "gelu", "gated affine from silu"),
    "trained_language": ([*SMALL_GPT, "--before", "2", "--steps", "1"], "gelu", "affine from gelu"),
    "physics": (["--steps", "1", "--points", "32"], "tanh", "tanh, learned slope"),
    "images": (["--size", "8", "--width", "8", "--steps", "2"], "sin", "linear of two sines"),
}


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, list[str]]:
    """Return the data of each study, a few samples."""
    numbers = ("longitude", "latitude", "housing_median_age", "total_rooms", "total_bedrooms", "population")
    columns = [*numbers, "households", "median_income", "median_house_value", "ocean_proximity"]
    rows = [[str(1 + (7 * i + 3 * j) % 11) for j in range(len(columns) - 1)] + ["INLAND"] for i in range(40)]
    (tmp_path / "housing.csv").write_text("\n".join(map(",".join, [columns, *rows])))
    (tmp_path / "text.txt").write_text("to be or not to be, " * 40)
    pixels = torch.randint(256, (260, 3, 8, 8), dtype=torch.uint8)
    labels = torch.arange(260) % 2
    data.register(data.Dataset("tiny", ("a", "b"), pixels, labels, pixels[:10], labels[:10]))
    for number in range(4):
        Image.fromarray(pixels[number].permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    files = {"tables": "housing.csv", "language": "text.txt", "trained_language": "text.txt", "images": "."}
    return {name: [str(tmp_path / file)] for name, file in files.items()} | {"physics": ["convection"]}


@pytest.mark.parametrize("study", STUDIES)
def test_study_compares_and_resumes(
    study: str, run: Callable[..., str], inputs: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES / "studies")
    options, fixed, learned = STUDIES[study]
    output = tmp_path / "runs.jsonl"
    command = [*inputs.get(study, []), *options, "--rates", "1e-4", "1e-3", "--seeds", "2"]
    command += ["--only", fixed, learned, "--output", str(output)]
    table = run(f"studies/{study}.py", *command)
    records = output.read_text()
    runs = [json.loads(line)["run"] for line in records.splitlines()]
    assert [item["seed"] for item in runs] == [0] * 4 + [100, 100, 101, 101]  # two rates, then fresh seeds
    assert {item["candidate"] for item in runs} == {fixed, learned}
    assert f"{fixed} (reference)" in table
    assert run(f"studies/{study}.py", *command) == table
    assert output.read_text() == records


def test_study_of_bases_halves_and_resumes(
    run: Callable[..., str], inputs: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES / "studies")
    command = ["--name", "tiny", "--network", "resnet8", "--bases", "identity", "relu", "tanh", "--sizes", "2"]
    command += ["--rungs", "1", "2", "--keep", "3", "--rates", "0.01", "0.1", "--seeds", "2"]
    table = run("studies/bases.py", *command, "--output", str(tmp_path / "bases.jsonl"))
    files = {
        path.stem: [json.loads(line)["run"] for line in path.read_text().splitlines()]
        for path in tmp_path.glob("*.jsonl")
    }
    assert len(files["bases-1"]) == 2 * 3 * 2  # kinds, pairs, rates
    for epochs in (1, 2):  # the search is not among them: another one may add to these records
        record = json.loads((tmp_path / f"bases-{epochs}.jsonl").read_text().splitlines()[0])
        assert record["arguments"] == {"name": "tiny", "network": "resnet8", "epochs": epochs}
    arms = {(item["candidate"], item["lr"]) for item in files["bases-1"]}
    later = [item for item in files["bases-2"] if item["seed"] == 0]
    assert {(item["candidate"], item["lr"]) for item in later[:4]} <= arms
    assert {item["candidate"] for item in later[4:]} >= {"relu", "tanh", "gelu", "silu", "elu", "mish"}
    confirmed = {item["candidate"] for item in files["bases-2"] if item["seed"] == 100}
    assert {
        f"affine({pair})" for pair in ("identity,relu", "identity,tanh", "relu,tanh", "identity,relu,tanh")
    } <= confirmed
    before = (tmp_path / "bases-2.jsonl").read_text()
    assert run("studies/bases.py", *command, "--output", str(tmp_path / "bases.jsonl")) == table
    assert (tmp_path / "bases-2.jsonl").read_text() == before
