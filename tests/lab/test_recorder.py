"""Test that runs of any training loop are recorded, for the commands that read records."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import hullo
import hullo.lab
from hullo.lab.cli import app
from hullo.lab.spec.records import Record, Records

NAMES = {"network": "my-mlp", "data": "blobs"}


def mlp(*acts: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 6), acts[0], nn.Linear(6, 6), acts[-1] if len(acts) > 1 else nn.Identity())


def read(folder: Path) -> list[Record]:
    return Records(folder / "records.jsonl").read()


def write(model: nn.Module, folder: Path, *accuracies: float, **given: Any) -> None:
    with hullo.lab.record(model, folder, **{**NAMES, **given}) as run:
        for accuracy in accuracies or (50.0,):
            run.log(test_accuracy=accuracy)


def fit(folder: Path, act: Any, seed: int, activation: str | None = None) -> list[list[list[float]]]:
    """Train on two clouds of points in a loop of one's own; return the coefficients before and after every epoch."""
    torch.manual_seed(seed)
    labels = torch.randint(2, (200,))
    x = torch.randn(200, 2) + 2.0 * labels[:, None]
    model = nn.Sequential(nn.Linear(2, 8), act(), nn.Linear(8, 8), act(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    hulls = [module for module in model if isinstance(module, hullo.modules.Hull)]
    seen = [[hull.coefficients.tolist() for hull in hulls]]
    with hullo.lab.record(model, folder, **NAMES, activation=activation, seed=seed, lr=0.03) as run:
        for _ in range(3):
            for batch in range(0, 160, 32):
                loss = nn.functional.cross_entropy(model(x[batch : batch + 32]), labels[batch : batch + 32])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            right = (model(x[160:]).argmax(1) == labels[160:]).float().mean()
            run.log(train_loss=loss, test_accuracy=100 * right)
            seen.append([hull.coefficients.tolist() for hull in hulls])
    return seen


def test_recorded_loop_works_with_table_figures_and_report(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for seed in range(2):
        fit(runs, nn.ReLU, seed, "relu")
        seen = fit(runs, lambda: hullo.AffineHull("tanh", "identity", "relu"), seed)
    records = {(record.spec.activation, record.spec.seed): record for record in read(runs)}
    assert len(records) == 4
    last = records["affine(identity,relu,tanh)", 1]
    order = [[[hull[1], hull[2], hull[0]] for hull in point] for point in seen]  # as the bases are listed in a record
    torch.testing.assert_close(torch.tensor(last.coefficients), torch.tensor(order), rtol=1e-5, atol=1e-6)
    assert len(last.train_loss) == len(last.test_accuracy) == last.spec.epochs == 3
    assert last.environment.hullo == hullo.__version__
    assert last.layers == ["1", "3"]
    assert records["relu", 0].layers == []

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 0, done.output
        return done.output

    table = run("table", str(runs))
    assert "my-mlp/blobs, 3 epochs" in table
    mean = (last.accuracy + records["affine(identity,relu,tanh)", 0].accuracy) / 2
    assert f"{mean:.2f}" in next(line for line in table.splitlines() if line.startswith("affine(identity,relu,tanh)"))
    assert "lr=0.03" in table
    assert "my-mlp,blobs,3,,,,,,,,,,lr=0.03," in run("table", str(runs), "--format", "csv")
    run("table", str(runs), "--experiment", "my-mlp/blobs lr=0.03")
    drawn = run("figures", str(runs), "--output", str(tmp_path / "figures"), "--only", "activations")
    assert drawn.count(".png") == 1
    run("report", str(runs), "--output", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert '"settings":"lr=0.03"' in page.replace(" ", "")
    assert '"layers":["layer 1 (1)","layer 2 (3)"]' in page
    assert '"title":"my-mlp on blobs"' in page


def test_documented_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "own.md").read_text().partition("## Your own training loop")[2]
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], {})
    assert len(read(tmp_path / "runs")) == 6


def test_per_channel_coefficients_are_recorded_as_means_and_rows(tmp_path: Path) -> None:
    rows = [[1.0, 0.0], [0.25, 0.75]] * 3
    hull = hullo.ConvexHull("identity", "relu", groups=6, init=rows)
    write(mlp(hull, hullo.ConvexHull("identity", "relu")), tmp_path, 10, 20)
    (record,) = read(tmp_path)
    assert record.spec.activation == "convex(identity,relu,per=channel)"
    assert record.coefficients == [[[0.625, 0.375], [0.5, 0.5]]] * 3
    assert record.channels == [rows, [[0.5, 0.5]]]


class Gate(nn.Module):
    def __init__(self, hull: hullo.Hull) -> None:
        super().__init__()
        self.gated = hullo.GatedHull(hull)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gated(x, x)


@pytest.mark.parametrize(
    ("acts", "spelling", "coefficients"),
    [
        ([hullo.AffineHull("relu", "tanh", init="tanh")], "affine(relu,tanh,init=tanh)", [[0, 1]]),
        (  # as after `replace_activations`: each starts as the function it replaced
            [hullo.AffineHull("relu", "tanh", init="tanh"), hullo.AffineHull("relu", "tanh", init="relu")],
            "affine(relu,tanh)",
            [[0, 1], [1, 0]],
        ),
        ([nn.PReLU(6)], "prelu", [[0.25, 0.75]]),
        ([hullo.ConvexHull("identity", "relu", parametrization="softmax")], None, [[0.5, 0.5]]),
        ([hullo.AffineHull("tanh", "gelu", strict=False).requires_grad_(False)], None, [[0.5, 0.5]]),
    ],
)
def test_activation_is_inferred_from_the_model(
    tmp_path: Path, acts: list[nn.Module], spelling: str | None, coefficients: list[list[float]]
) -> None:
    write(mlp(*acts), tmp_path)
    (record,) = read(tmp_path)
    assert spelling is None or record.spec.activation == spelling
    assert record.coefficients == [coefficients] * 2


def test_keras_model_is_recorded_with_its_coefficients(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    import hullo.keras

    hull = hullo.keras.AffineHull(["relu", "identity"], init="relu")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), hull])
    with hullo.lab.record(model, tmp_path, **NAMES) as run:
        hull.coefficients = [0.75, 0.25]
        run.log(val_accuracy=90, val_loss=0.5)
    (record,) = read(tmp_path)
    assert record.spec.activation == "affine(identity,relu,init=relu)"
    assert record.coefficients == [[[0, 1]], [[0.25, 0.75]]]
    assert (record.val_accuracy, record.test_accuracy) == ([90], [])
    assert "held-out accuracy" in CliRunner().invoke(app, ["table", str(tmp_path)]).output


def test_exception_leaves_no_record(tmp_path: Path) -> None:
    write(mlp(nn.ReLU()), tmp_path, activation="relu")
    before = (tmp_path / "records.jsonl").read_bytes()

    def fail() -> None:
        with hullo.lab.record(mlp(nn.ReLU()), tmp_path, **NAMES, activation="relu", seed=1) as run:
            run.log(test_accuracy=50)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    with (
        pytest.raises(ValueError, match="no epoch was logged"),
        hullo.lab.record(mlp(nn.ReLU()), tmp_path, **NAMES, activation="tanh"),
    ):
        pass
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_run_is_recorded_once_unless_overwrite(tmp_path: Path) -> None:
    for other in ({}, {"seed": 1}, {"lr": 0.1}, {"lr": 0.2, "opt": "sgd"}, {"data": "moons"}):
        write(mlp(nn.ReLU()), tmp_path, 50, activation="relu", **other)
    with pytest.raises(FileExistsError, match=r"my-mlp/blobs relu seed=1 .*overwrite=True"):
        write(mlp(nn.ReLU()), tmp_path, 60, 70, activation="relu", seed=1)
    others = [record for record in read(tmp_path) if record.spec.seed == 0]
    assert len(others) == 4
    write(mlp(nn.ReLU()), tmp_path, 60, 70, activation="relu", seed=1, overwrite=True)
    assert read(tmp_path)[:-1] == others
    assert read(tmp_path)[-1].test_accuracy == [60, 70]


def test_nonfinite_loss_marks_a_diverged_run(tmp_path: Path) -> None:
    hull = hullo.AffineHull("identity", "relu")
    with hullo.lab.record(mlp(hull), tmp_path, **NAMES) as run:
        run.log(test_accuracy=60, train_loss=1.0)
        run.log(test_accuracy=50, train_loss=torch.tensor(math.nan))
        run.log(test_accuracy=50, train_loss=1e300)
    with hullo.lab.record(mlp(hull), tmp_path, **NAMES, seed=1) as run:
        run.log(test_accuracy=60, train_loss=1.0)
        hull.raw.data.fill_(math.nan)
        run.log(test_accuracy=50, train_loss=1.0)
    record, coefficients = read(tmp_path)
    assert (record.diverged_in, coefficients.diverged_in) == (2, 2)
    assert record.train_loss == [1.0, None, None]
    assert coefficients.coefficients[-1] == [[None, None]]
    for command in (["table"], ["report", "--output", str(tmp_path / "page.html")]):
        assert CliRunner().invoke(app, [command[0], str(tmp_path), *command[1:]]).exit_code == 0


def test_epoch_after_the_end_is_refused(tmp_path: Path) -> None:
    with hullo.lab.record(
        mlp(nn.ReLU()), tmp_path, network="m", data="d", activation="relu", lr=np.float32(0.1)
    ) as run:
        run.log(test_accuracy=50.0)
    with pytest.raises(ValueError, match="with block"):
        run.log(test_accuracy=60.0)
    assert [(r.spec.settings, r.spec.epochs) for r in read(tmp_path)] == [("lr=0.1", 1)]


def test_accuracy_like_a_fraction_warns(tmp_path: Path) -> None:
    for seed, best in enumerate((0.93, 1.0)):
        with pytest.warns(UserWarning, match=rf"{best:g} percent"):
            write(mlp(nn.ReLU()), tmp_path, 0.5, best, activation="relu", seed=seed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": "my mlp"}, r"my mlp.*letters"),
        ({"network": "a/b"}, r"a/b"),
        ({"data": 3}, r"data=3"),
        ({"activation": None}, r"must be given.*no hulls"),
        ({"activation": "affine(identity,relu)"}, r"affine\(identity,relu\).*no hulls"),
        ({"activation": "swoosh"}, r"swoosh"),
        ({"seed": -1}, r"seed=-1"),
        ({"seed": 1.5}, r"seed=1\.5"),
        ({"epochs": 10}, r"epochs.*log"),
        ({"lr": [1, 2]}, r"lr=\[1, 2\]"),
        ({"optimizer": "sgd momentum=0.9"}, r"momentum=0\.9"),
        ({"a b": 1}, r"a b=1"),
        ({"val_size=1": 2}, r"val_size=1"),
        ({"note": ""}, r"note='"),
    ],
)
def test_wrong_arguments_are_rejected_before_training(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write(mlp(nn.ReLU()), tmp_path, **{"activation": "relu", **settings})
    assert not list(tmp_path.iterdir())


def test_hulls_are_recorded_per_channel_if_one_of_them_has_channels(tmp_path: Path) -> None:
    hulls = (hullo.AffineHull("identity", "relu", groups=groups) for groups in (2, 1))
    with hullo.lab.record(nn.Sequential(*hulls), tmp_path, network="net", data="data") as run:
        run.log(test_accuracy=50.0)
    (record,) = read(tmp_path)
    assert record.spec.row.per == "channel"
    assert [len(layer) for layer in record.channels] == [2, 1]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(max_size=5) | st.just("mlp"),
    st.text(max_size=130) | st.sampled_from(["lr", "width", "epochs"]),
    st.floats() | st.integers() | st.text(max_size=130),
    st.integers(-1),
)
def test_accepted_arguments_round_trip(tmp_path: Path, network: str, name: str, value: Any, seed: int) -> None:
    folder = tmp_path / "runs"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with hullo.lab.record(
            nn.ReLU(), folder, network=network, data="d", activation="relu", seed=seed, **{name: value}
        ) as run:
            run.log(test_accuracy=50)
    except (ValueError, TypeError):
        assert not folder.exists()
    else:
        (record,) = read(folder)
        assert record.spec.conditions == {"epochs": 1, name: str(value)}


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"accuracy": 50}, "unknown metric 'accuracy'.*test_accuracy"),
        ({"train_loss": 1.0}, "got train_loss; log test_accuracy"),
        ({"test_accuracy": math.nan}, "test_accuracy=nan.*percent"),
        ({"test_accuracy": 101}, "test_accuracy=101.*percent"),
        ({"test_accuracy": "50"}, "test_accuracy='50'"),
        ({"test_accuracy": torch.ones(2)}, "test_accuracy=.*number"),
        ({"test_accuracy": 50, "val_accuracy": 50}, "got test_accuracy, val_accuracy;.*earlier epochs: test_accuracy"),
    ],
)
def test_wrong_metrics_are_rejected(tmp_path: Path, metrics: dict[str, Any], message: str) -> None:
    with hullo.lab.record(mlp(nn.ReLU()), tmp_path, **NAMES, activation="relu") as run:
        run.log(test_accuracy=50)
        with pytest.raises(ValueError, match=message):
            run.log(**metrics)
    assert read(tmp_path)[0].test_accuracy == [50]


def test_unsupported_hulls_are_rejected_by_name(tmp_path: Path) -> None:
    hullo.add_base("recorder_bump", lambda x: x * torch.exp(-x.square()))
    odd = {
        "recorder_bump": hullo.AffineHull("relu", "recorder_bump"),
        "inner scale": hullo.AffineHull("relu", "tanh", inner_scale="hull"),
        r"affine\(identity,relu\), affine\(relu,tanh\)": mlp(
            hullo.AffineHull("identity", "relu"), hullo.AffineHull("relu", "tanh")
        ),
    }
    for words, model in odd.items():
        with pytest.raises(ValueError, match=words):
            write(model, tmp_path)
        write(model, tmp_path, activation="own", overwrite=True)
    write(odd[r"affine\(identity,relu\), affine\(relu,tanh\)"], tmp_path, activation="affine(relu,tanh)")
    assert [record.coefficients for record in read(tmp_path)] == [[], [[[0.5, 0.5]]] * 2]
    with pytest.raises(ValueError, match=r"'relu'.*affine\(relu,tanh\)"):
        write(mlp(hullo.AffineHull("relu", "tanh")), tmp_path, activation="relu")
    with pytest.raises(TypeError, match="runs"):
        write("runs", tmp_path)  # type: ignore[arg-type]


def test_recorded_and_laboratory_runs_share_a_table(tmp_path: Path) -> None:
    from made_records import make_record

    Records(tmp_path / "records.jsonl").add([make_record("relu", [70.0], column="lenet5/cifar10")])
    write(mlp(nn.ReLU()), tmp_path, network="lenet5", data="cifar10", activation="relu", width=64)
    write(mlp(nn.ReLU()), tmp_path, network="lenet5", data="cifar10", activation="relu", width=128)
    for experiment, count in (("lenet5/cifar10", 3), ("lenet5/cifar10 width=64", 1), ("lenet5/cifar10 lr=0.0001", 1)):
        done = CliRunner().invoke(app, ["table", str(tmp_path), "--experiment", experiment])
        assert done.output.count("accuracy in %") == count, done.output
    wrong = CliRunner().invoke(app, ["table", str(tmp_path), "--experiment", "lenet5/cifar10 width=7"])
    assert wrong.exit_code == 2
    assert "width=7" in wrong.output


def test_record_with_edited_settings_is_rejected(tmp_path: Path) -> None:
    write(mlp(nn.ReLU()), tmp_path, activation="relu", lr=0.1)
    file = tmp_path / "records.jsonl"
    values = json.loads(file.read_text())
    for edited in ("lr=0.2", "lr=0.1 lr=0.1", "lr", "b=1 a=1", "epochs=3", 5):
        file.write_text(json.dumps({**values, "spec": {**values["spec"], "settings": edited}}) + "\n")
        assert len(Records(file).scan()[1]) == 1
