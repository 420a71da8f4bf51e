"""Test that records are added completely and once, by any number of processes, also after a kill."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_command
import torch
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

import hullo
from hullo.lab.run.loaders import InMemoryLoader
from hullo.lab.run.local import build_records
from hullo.lab.run.training import Training
from hullo.lab.spec.environment import Environment, environment
from hullo.lab.spec.records import VERSION, Record, Records, learned_fields, make_record
from hullo.lab.spec.run_spec import Spec

SPEC = Spec("lenet5", "fashion-mnist-sample", "convex(identity,tanh)", epochs=2)
RECORD = Record(
    SPEC,
    "diverged in epoch 2",
    train_loss=[2.0, 1.5],
    test_loss=[1.75, None],
    test_accuracy=[30.0, 51.5],
    bases=["identity", "tanh"],
    coefficients=[[[0.5, 0.5]], [[0.4, 0.6]], [[0.3, 0.7]]],
    members=1,
    seconds=1.5,
    environment=Environment("a machine", 1, "3.11", "2.13", "", "0.1", "abc"),
)


def several(count: int, start: int = 0) -> list[Record]:
    return [replace(RECORD, spec=replace(SPEC, seed=seed)) for seed in range(start, start + count)]


def own(network: str, seconds: float) -> Record:
    """Return a record as `hullo.lab.record` makes it."""
    return replace(RECORD, spec=Spec(network, "mine", SPEC.activation, epochs=2, settings="lr=0.1"), seconds=seconds)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "out" / "records.jsonl")


def test_records_take_the_name_of_a_file(records: Records) -> None:
    assert Records(str(records.path)).path == records.path


def test_each_line_is_validated_once(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    check = Record._check
    monkeypatch.setattr(Record, "_check", lambda self: (checked.append(self.spec.seed), check(self))[1])
    records.path.parent.mkdir()
    records.path.write_bytes(b"".join(record.line() for record in several(3, start=700)))
    for _ in range(2):
        assert Records(records.path).read() == several(3, start=700)
    assert checked == [700, 701, 702]
    with records.path.open("ab") as file:  # by another process
        file.write(several(1, start=703)[0].line())
    assert len(records.find(record.spec for record in several(9, start=702))) == 2
    assert checked == [700, 701, 702, 703]


def test_records_are_read_in_order_one_per_line(records: Records) -> None:
    assert records.read() == []
    records.add(several(2))
    records.add(several(1, start=2))
    assert records.read() == several(3)
    lines = [json.loads(line) for line in records.path.read_text().splitlines()]
    assert [(line["version"], line["id"]) for line in lines] == [(VERSION, r.spec.id) for r in several(3)]


def test_run_is_never_recorded_twice(records: Records) -> None:
    records.add([RECORD, replace(RECORD, seconds=2.5)])
    before = records.path.read_bytes()
    records.add([replace(RECORD, seconds=3.5)])
    assert records.path.read_bytes() == before
    assert before.count(b"\n") == 1


@given(st.data())
def test_incomplete_write_loses_only_its_own_record(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    records = Records(tmp_path_factory.mktemp("torn") / "records.jsonl")
    records.add(several(3))
    content = records.path.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    records.path.write_bytes(content[:cut])
    lacks_only_its_end = content[cut : cut + 1] == b"\n"
    assert records.read() == several(content[:cut].count(b"\n") + lacks_only_its_end)
    records.add(several(3))
    assert records.path.read_bytes() == content


def test_last_record_without_a_newline_is_kept(records: Records) -> None:
    records.add(several(2))
    records.path.write_bytes(records.path.read_bytes().rstrip(b"\n"))
    assert records.read() == several(2)
    records.add(several(3))
    assert records.read() == several(3)
    with records.path.open("ab") as file:
        file.write(b'{"version":99}')
    with pytest.raises(ValueError, match=r"line 4: .*version 3"):
        records.add(several(4))
    assert records.path.read_bytes().endswith(b'{"version":99}')


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (RECORD.line().replace(b'"version":3', b'"version":7'), ".*version 3"),
        (b"{}\n", ".*version 3"),
        (b'{"version":3,"id":"x"}\n', ".*spec"),
        (b"nonsense\n", ".*Expecting value"),
        (b"12\n", ".*version 3"),
        (replace(RECORD, seconds=2.5).line(), "spec: line 1 has another record"),
    ],
)
def test_invalid_line_is_rejected_with_its_number(records: Records, line: bytes, message: str) -> None:
    records.add([RECORD])
    content = records.path.read_bytes() + line
    records.path.write_bytes(content)
    for attempt in (records.read, lambda: records.add(several(3))):
        with pytest.raises(ValueError, match=rf"records.jsonl, line 2: {message}"):
            attempt()
    assert records.path.read_bytes() == content


def test_full_disk_leaves_the_file_unchanged(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    records.add([RECORD])
    before = records.path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        records.add(several(3))
    assert records.path.read_bytes() == before


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda records: records.add([*several(3), own("net", 2.0)]), 4),  # the others are there by then
        (lambda records: records.put(own("net", 2.0), overwrite=True), 3),
    ],
    ids=["add", "put"],
)
def test_a_writer_waits_for_another_and_keeps_its_records(
    records: Records, write: Callable[[Records], None], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.add([*several(1), own("net", 1.0)] if expected == 3 else several(1))
    before, waits = records.path.read_bytes(), threading.Event()
    monkeypatch.setattr("hullo.lab.files.check_stop", waits.set)
    writer = threading.Thread(target=write, args=[records])
    with FileLock(records.path.with_name(".records.lock")):
        writer.start()
        while writer.is_alive() and not waits.is_set():
            time.sleep(0.01)
        assert waits.is_set()
        assert records.path.read_bytes() == before
        with records.path.open("ab") as file:
            file.write(several(2)[1].line())
    writer.join()
    result = records.read()
    assert len(result) == len({record.spec for record in result}) == expected
    assert several(2)[1] in result
    assert own("net", 2.0) in result
    assert records.path.read_bytes().count(b"\n") == expected


def test_training_is_recorded_per_member() -> None:
    rows = ("relu", "affine(relu,tanh)", "convex(identity,relu)")
    specs = [replace(SPEC, activation=row, lr=lr) for row, lr in zip(rows, (1e-4, 1e-2, 1e30), strict=True)]
    training = Training(specs, InMemoryLoader(tiny_command.load(SPEC.data)))
    for _ in training.advance():
        training.seconds += 1
    fixed, learned, lost = build_records(training, environment("here"))
    assert [record.spec for record in (fixed, learned, lost)] == specs
    assert (fixed.ended, learned.ended, lost.ended) == ("finished", "finished", "diverged in epoch 1")
    assert (fixed.bases, fixed.coefficients) == ([], [])
    assert learned.bases == ["relu", "tanh"]
    assert learned.coefficients[0] == [[0.5, 0.5]] * 3
    for point in learned.coefficients[1:]:
        assert all(sum(layer) == pytest.approx(1, abs=2e-6) and layer != [0.5, 0.5] for layer in point)
    assert len(learned.coefficients) == 3
    assert lost.test_loss == [None, None]
    assert learned.accuracy == learned.test_accuracy[-1]
    assert len(learned.train_loss) == len(learned.test_loss) == len(learned.test_accuracy) == 2
    assert (learned.members, learned.seconds) == (3, 8)
    for record in (fixed, learned, lost):
        assert Record.parse(record.line()) == record


def test_run_diverged_where_anything_was_not_finite() -> None:
    spec, more = (
        replace(SPEC, activation="relu", epochs=3),
        {"members": 1, "seconds": 1.0, "environment": environment("here"), "test_loss": [], "test_accuracy": []},
    )
    for losses, sound, ended in (
        ([1.0, 2.0, 3.0], [True, True, True], "finished"),
        ([1.0, 2.0, 3.0], [True, True, False], "diverged in epoch 3"),
        ([1.0, float("nan"), 3.0], [True, True, False], "diverged in epoch 2"),
    ):
        record = make_record(spec, learned_fields(spec.row, [], []), {"train_loss": losses}, sound, **more)
        assert record.ended == ended


def test_held_out_images_have_separate_curves() -> None:
    training = Training(
        [replace(SPEC, val_size=20)], InMemoryLoader(tiny_command.load(SPEC.data).split_validation(20, 0))
    )
    for _ in training.advance():
        pass
    (record,) = build_records(training, environment("here"))
    assert record.val_loss == pytest.approx(training.curves["val_loss"][:, 0].tolist(), rel=1e-5)
    assert record.val_accuracy == pytest.approx(training.curves["val_accuracy"][:, 0, 0].tolist(), rel=1e-5)
    assert record.test_loss == pytest.approx(training.curves["test_loss"][:, 0].tolist(), rel=1e-5)
    assert record.accuracy == record.test_accuracy[-1]
    assert Record.parse(record.line()) == record
    assert replace(record, test_loss=[], test_accuracy=[]).accuracy == record.val_accuracy[-1]


@pytest.mark.parametrize("other_rows", [(), ("convex(identity,tanh)", "relu")])
def test_per_channel_coefficients_are_recorded_as_means_and_final_values(other_rows: tuple[str, ...]) -> None:
    rows = ("affine(identity,relu,per=channel)", *other_rows)
    specs = [replace(SPEC, activation=row, lr=1e-2) for row in rows]
    training = Training(specs, InMemoryLoader(tiny_command.load(SPEC.data)))
    for _ in training.advance():
        pass
    record, *others = build_records(training, environment("here"))
    for k, other in enumerate(others, 1):
        assert other.channels == []
        learned = [
            c for hull in hullo.summary(training.population[k]).hulls.values() for c in hull.coefficients.tolist()
        ]
        assert [c for layer in (other.coefficients or [[]])[-1] for c in layer] == pytest.approx(learned, abs=1e-6)
    assert [len(layer) for layer in record.channels] == [20, 50, 1]
    assert [len(point) for point in record.coefficients] == [3, 3, 3]
    for channels, mean in zip(record.channels, record.coefficients[-1], strict=True):
        assert torch.tensor(channels).mean(0).tolist() == pytest.approx(mean, rel=1e-4)
    assert len({channel[0] for channel in record.channels[1]}) > 1
    assert Record.parse(record.line()) == record
