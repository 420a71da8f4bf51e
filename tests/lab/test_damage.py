"""Test that damaged records and checkpoints are valid or rejected with one line that says why."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_command
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner

from hullo.lab.cli import app
from hullo.lab.run.checkpoints import Checkpoints
from hullo.lab.run.loaders import InMemoryLoader
from hullo.lab.run.training import Training
from hullo.lab.spec.records import MAX_BYTES, Record, Records
from hullo.lab.spec.run_spec import Spec, identify
from made_records import make_record

HULL = make_record(
    "affine(identity,relu,per=channel)",
    [50.0, 60.0],
    ended="diverged in epoch 2",
    coefficients=[[0.25, 0.75], [0.5, 0.5]],
    val_size=10,
)
RECORDS = (
    make_record("relu", [50.0, 60.0]),
    make_record("affine(identity,relu)", [50.0, 60.0], coefficients=[[0.25, 0.75], [0.5, 0.5]]),
    replace(HULL, test_loss=[1.0, None], test_accuracy=[40.0, 10.0], test_top5=[70.0, 75.0], images=[1200, 50]),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 4),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(
        [
            10**400,
            2**63,
            1e308,
            1e-320,
            "finished",
            "diverged in epoch 1",
            "diverged in epoch 3",
            "relu",
            "\ud800",
            "a\nb",
        ]
    ),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
TOKENS = ["NaN", "-Infinity", "1e999", "[" * 5000 + "]" * 5000, "1" * 5000, "01", "'x'", '{"a": 1, "a": 2}', ""]


def choose_place(data: st.DataObject, value: Any) -> tuple[list[Any], Any]:
    """Draw a place within a value: the lists and objects on the way to it, and the last key."""
    parametrization, key = [value], data.draw(st.sampled_from(sorted(value)))
    while isinstance(inner := parametrization[-1][key], dict | list) and inner and data.draw(st.booleans()):
        parametrization.append(inner)
        key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
    return parametrization, key


def damage(data: st.DataObject, record: Record) -> bytes:
    """Return the line of a record with something else somewhere in it."""
    values = json.loads(record.line())
    parametrization, key = choose_place(data, values)
    kind = data.draw(st.sampled_from(["replace", "delete", "token", "repeat", "wrap", "add", "exchange"]))
    if kind == "delete":
        del parametrization[-1][key]
    elif kind == "repeat" and isinstance(parametrization[-1], list):
        parametrization[-1].append(parametrization[-1][key])
    elif kind == "wrap":
        parametrization[-1][key] = [parametrization[-1][key]]
    elif kind == "add" and isinstance(parametrization[-1], dict):
        parametrization[-1][data.draw(st.text(max_size=3))] = data.draw(VALUES)
    elif kind == "exchange":
        other = data.draw(st.sampled_from(sorted(values)))
        values[other], parametrization[-1][key] = parametrization[-1][key], values[other]
    else:
        parametrization[-1][key] = "TOKEN" if kind == "token" else data.draw(VALUES)
    line = json.dumps(values)
    if kind == "token":
        line = line.replace('"TOKEN"', data.draw(st.sampled_from(TOKENS)))
    return line.encode("utf-8", "surrogatepass") + b"\n"


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(RECORDS), st.data())
def test_damaged_record_is_valid_or_reported_with_line_and_field(
    tmp_path: Path, record: Record, data: st.DataObject
) -> None:
    path = tmp_path / "records.jsonl"
    good, line = make_record("relu", [70.0], column="lenet5/cifar10"), damage(data, record)
    path.write_bytes(good.line() + line)
    actual, flaws = Records(path).scan()
    assert actual[0] == good
    if flaws:
        assert len(actual) == len(flaws) == 1
        field, _, what = flaws[0].removeprefix(f"{path}, line 2: ").partition(": ")
        assert field.partition(".")[0].partition("[")[0] in {*json.loads(good.line()), "the line", "invalid JSON"} or (
            "unknown" in what
        )
        assert flaws[0].isprintable()
        assert len(flaws[0]) < len(str(path)) + 400
        return
    if actual[-1] in (good, record):
        return  # shown often enough
    for command in (["table"], ["table", "--format", "latex"], ["report", "--output", tmp_path / "page.html"]):
        result = CliRunner().invoke(app, [*map(str, command), str(path)])
        assert (result.exit_code, result.stderr) == (0, ""), (line, result.output)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ended": "diverged in epoch x"}, "ended"),
        ({"ended": "diverged in epoch 3"}, "ended"),
        ({"train_loss": [1.0]}, "train_loss"),
        ({"train_loss": [None, 1.0]}, r"train_loss\[0\]"),
        ({"test_accuracy": [50.0, 101.0]}, r"test_accuracy\[1\]"),
        ({"test_accuracy": []}, "test_accuracy"),
        ({"val_accuracy": [1.0, 1.0]}, "val_accuracy"),
        ({"bases": ["relu", "identity"]}, "bases"),
        ({"coefficients": []}, "coefficients"),
        ({"coefficients": [[]] * 3}, r"coefficients\[0\]"),
        ({"coefficients": [[[0.5, 0.5]], [[0.5, 0.5]] * 2, [[0.5, 0.5]]]}, r"coefficients\[1\]"),
        ({"coefficients": [[[0.5, 0.5]], [[0.5]], [[0.5, 0.5]]]}, r"coefficients\[1\]\[0\]"),
        ({"channels": [[[0.5, 0.5]]]}, "channels"),
        ({"images": [1200]}, "images"),
        ({"members": True}, "members"),
        ({"seconds": 10**400}, "seconds"),
        ({"id": "abc"}, "id"),
        ({"environment": {}}, "environment.device"),
        ({"spec": "relu"}, "spec"),
        ({"mood": "good"}, "mood"),
    ],
)
def test_inconsistent_field_is_rejected_by_name(change: dict[str, Any], field: str) -> None:
    line = json.dumps(json.loads(RECORDS[1].line()) | change).encode()
    with pytest.raises(ValueError, match=rf"^{field}: "):
        Record.parse(line)


def test_overlong_and_incomplete_lines_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hullo.lab.spec.records.MAX_BYTES", 4000)
    assert len(RECORDS[0].line()) < 4000 < MAX_BYTES
    path = tmp_path / "records.jsonl"
    long = b'"' + b"x" * 10_000 + b'"\n'
    path.write_bytes(b"\n" + RECORDS[0].line() + long + b"\xff\xfe\n" + RECORDS[1].line() + long[:-1])
    result, flaws = Records(path).scan()
    assert result == list(RECORDS[:2])
    assert [flaw.partition(": ")[0] for flaw in flaws] == [f"{path}, line 3", f"{path}, line 4"]
    assert "longer than 4,000 bytes" in flaws[0]
    assert Records(path).truncated_bytes == len(long) - 1


SPECS = tuple(Spec("lenet5", "fashion-mnist-sample", row, epochs=2) for row in ("relu", "affine(identity,tanh)"))
FEED = InMemoryLoader(tiny_command.load("fashion-mnist-sample"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint from the second epoch."""
    folder = tmp_path_factory.mktemp("checkpoint")
    training = Training(SPECS, FEED)
    steps = training.advance()
    while training.epoch < 1 or training.step < 1:
        next(steps)
    Checkpoints(folder).save(training)
    return folder


NAMES = st.sampled_from(["position", "total", "optimizer.updates", "population.stacked.conv1.weight", "curves.finite"])
POSITIONS = st.sampled_from([-1.0, 0.5, 2.0, 3.0, 1e18, math.nan, math.inf])
SPELLED = ["", "[]", "{}", "[1]", '["x"]', "[" * 5000, json.dumps([str(SPECS[0])]), json.dumps([str(SPECS[0])] * 2)]
CHANGES = st.one_of(
    st.tuples(st.just("missing"), NAMES, st.none()),
    st.tuples(st.just("unknown"), st.text("ab", min_size=1, max_size=3), st.none()),
    st.tuples(st.just("type"), NAMES, st.sampled_from([torch.float16, torch.int32, torch.uint8, torch.complex64])),
    st.tuples(st.just("shape"), NAMES, st.sampled_from([(), (1,), (2, 3), (0,)])),
    st.tuples(st.just("position"), st.integers(0, 2), POSITIONS),
    st.tuples(st.just("updates"), st.integers(-(2**63), 2**63 - 1), st.none()),
    st.tuples(st.just("about"), st.sampled_from(["version", "specs", "data"]), st.none() | st.sampled_from(SPELLED)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CHANGES)
@example(("position", 2, 5.0))
@example(("about", "specs", json.dumps([str(spec) for spec in SPECS[::-1]])))
def test_damaged_checkpoint_is_rejected_without_loading_anything(
    checkpoint: Path, tmp_path: Path, change: tuple[str, Any, Any]
) -> None:
    kind, name, new = change
    path = tmp_path / f"{identify(SPECS)}.safetensors"
    with safe_open(checkpoint / path.name, "pt") as file:
        about, state = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del about["checksum"]  # as if these tensors had been saved
    harmless = False
    if kind == "missing":
        del state[name]
    elif kind == "unknown":
        state[name] = torch.zeros(1)
    elif kind == "type":
        state[name] = state[name].to(new)
    elif kind == "shape":
        changed = torch.zeros(new, dtype=state[name].dtype)
        harmless = torch.equal(state[name], changed)
        state[name] = changed
    elif kind == "position":
        harmless = name == 2 and 0 <= new < math.inf
        state["position"][name] = new
    elif kind == "updates":
        harmless = float(name) == float(state["optimizer.updates"])
        state["optimizer.updates"] = torch.tensor(float(name), dtype=torch.float64)
    elif new is None:
        del about[name]
    else:
        about[name] = new
    save_file(state, path, about)
    training = Training(SPECS, FEED)
    before = copy.deepcopy(training.state_dict())
    if harmless:
        Checkpoints(tmp_path).restore(training)
        assert (training.epoch, training.step) == (1, 1)
        return
    with pytest.raises(ValueError, match=f"^{path}.*delete it to train its runs"):
        Checkpoints(tmp_path).restore(training)
    after = training.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
