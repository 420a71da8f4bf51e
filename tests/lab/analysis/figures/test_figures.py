"""`hullo figures`: the same records give the same bytes; what cannot be drawn is said in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import Result
from matplotlib.image import imread
from runs_to_draw import learned, run
from typer.testing import CliRunner

from hullo.lab.analysis.figures.style import darken
from hullo.lab.cli import app
from hullo.lab.spec.records import Record, Records
from hullo.lab.spec.run_spec import Spec

RUNS = [
    *(run("relu", seed, accuracies=[50.0, 60.0 + seed]) for seed in (0, 1)),
    learned("convex(identity,relu,tanh)"),
    learned("affine(identity,relu,tanh)", 0),
    learned("affine(identity,relu,tanh)", 1),
    learned("affine(identity,relu)"),
]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    Records(tmp_path / "runs" / "records.jsonl").add(RUNS)
    return tmp_path / "runs"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["figures", *map(str, arguments)])


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def both(*names: str) -> list[str]:
    return sorted(f"{name}.{kind}" for name in names for kind in ("pdf", "png"))


def test_fresh_processes_write_the_same_bytes_whatever_the_users_settings_and_without_pyplot(
    records: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "matplotlibrc"
    settings.write_text("font.size: 20\nlines.linewidth: 9\npdf.compression: 0\nsavefig.dpi: 50\nfont.family: serif\n")
    code = (
        "import sys\nfrom hullo.lab.cli import app\ntry: app()\nfinally: assert 'matplotlib.pyplot' not in sys.modules"
    )
    folders = [tmp_path / "one", tmp_path / "two"]
    kinds = ("png", "pdf", "svg")
    options = ["--activation", "affine(identity,relu,tanh)", "--dark"]
    options += [word for name in ("coefficients", "accuracy") for word in ("--only", name)]
    options += [word for kind in kinds for word in ("--format", kind)]
    changes = [{"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", "MATPLOTLIBRC": str(settings), "TZ": "Asia/Tokyo"}]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, "figures", records, *options, "--output", folder],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | change,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for folder, change in zip(folders, changes, strict=True)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert (process.returncode, errors) == (0, "")
    stems = ["accuracy-over-epochs", "coefficients-identity-relu-tanh", "final-accuracy"]
    names = sorted(
        f"lenet5-cifar10-{name}{end}" for name in stems for end in ("-dark.png", *(f".{kind}" for kind in kinds))
    )
    assert written(folders[0]) == written(folders[1]) == names
    for name in names:
        one, two = ((folder / name).read_bytes() for folder in folders)
        assert one == two, name
        assert one.startswith({"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[name[-3:]])
        assert b"Date" not in one


def test_the_diagram_is_drawn_without_records_and_only_when_asked_for(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke(records, "--output", tmp_path / "all").exit_code == 0
    assert not {"geometry.png"} & {*written(tmp_path / "all")}
    monkeypatch.chdir(tmp_path / "all")  # where there are no records
    assert invoke("--only", "geometry").exit_code == 0
    assert written(tmp_path / "all" / "figures") == both("geometry")
    result = invoke("--only", "geometry", "--only", "accuracy")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("hullo: runs does not exist; make records first")


def test_where_nothing_was_learned_a_line_says_so(tmp_path: Path) -> None:
    Records(tmp_path / "records.jsonl").add(RUNS[:2])
    result = invoke(tmp_path, "--only", "activations", "--only", "coefficients", "--output", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines() == [
        f"note: lenet5-cifar10-{name} is left out: no finished run learned these activations"
        for name in ("activations", "coefficients")
    ]
    assert written(tmp_path / "out") == []


def test_figures_columns_epoch_and_seed_can_be_chosen(records: Path, tmp_path: Path) -> None:
    Records(records / "more" / "records.jsonl").add([learned("affine(identity,relu)", column=("kerasnet", "cifar10"))])
    chosen = ("--experiment", "kerasnet/cifar10", "--only", "activations", "--output")
    result = invoke(records, *chosen, tmp_path / "end")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'end'}/kerasnet-cifar10-activations.png, kerasnet-cifar10-activations.pdf\n"
    assert invoke(records, *chosen, tmp_path / "begin", "--epoch", 1).exit_code == 0
    image = "kerasnet-cifar10-activations.png"
    assert (tmp_path / "begin" / image).read_bytes() != (tmp_path / "end" / image).read_bytes()
    seeds = [tmp_path / "first", tmp_path / "second"]
    for seed, folder in enumerate(seeds):
        picked = ("--experiment", "lenet5/cifar10", "--only", "activations", "--seed", seed, "--output", folder)
        assert invoke(records, *picked).exit_code == 0
    first, second = ((folder / "lenet5-cifar10-activations.png").read_bytes() for folder in seeds)
    assert first != second


def test_rows_can_be_chosen_and_what_is_drawn_is_what_their_records_alone_give(records: Path, tmp_path: Path) -> None:
    some = ("--format", "png", "--only", "accuracy", "--only", "activations", "--only", "coefficients", "--output")
    rows = ("--activation", "affine(tanh, relu, identity)", "--activation", "relu")
    assert invoke(records, *rows, *some, tmp_path / "chosen").exit_code == 0
    Records(tmp_path / "few" / "records.jsonl").add([RUNS[0], RUNS[1], RUNS[3], RUNS[4]])
    assert invoke(tmp_path / "few", *some, tmp_path / "alone").exit_code == 0
    assert "lenet5-cifar10-coefficients-identity-relu.png" not in written(tmp_path / "chosen")
    assert written(tmp_path / "chosen") == written(tmp_path / "alone")
    for name in written(tmp_path / "chosen"):
        assert (tmp_path / "chosen" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name


def test_layers_are_named_and_dark_images_are_dark(records: Path, tmp_path: Path) -> None:
    chosen = ("--only", "coefficients", "--activation", "affine(identity,relu)")
    look = ("--format", "svg", "--format", "png", "--dark")
    assert invoke(records, *chosen, *look, "--output", tmp_path).exit_code == 0
    name = "lenet5-cifar10-coefficients-identity-relu"
    drawing = (tmp_path / f"{name}.svg").read_text()
    ElementTree.fromstring(drawing)
    assert "linear 1, 500 units" in re.findall(r"<!-- (.*?) -->", drawing)
    plain, dark = (imread(tmp_path / f"{name}{end}.png") for end in ("", "-dark"))
    assert plain.shape == dark.shape
    assert plain[0, 0].tolist() == [1, 1, 1, 1]
    assert (255 * dark[0, 0, :3]).round().tolist() == [13, 17, 23]  # the ground of dark pages on GitHub
    ink = plain[..., :3].max(-1) < 0.05
    assert ink.any()
    assert dark[ink][:, :3].min() > 0.9


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_hues_stay_in_dark_images(channel: int) -> None:
    color = np.full((1, 1, 3), 0.2)
    color[..., channel] = 0.9
    assert darken(color).argmax() == channel


def test_columns_without_the_chosen_rows_are_left_out(records: Path, tmp_path: Path) -> None:
    Records(records / "more" / "records.jsonl").add([run("tanh", column=("kerasnet", "cifar10"))])
    arguments = ("--activation", "tanh", "--only", "accuracy", "--output", tmp_path / "out")
    assert invoke(records, *arguments).exit_code == 0
    assert written(tmp_path / "out") == both("kerasnet-cifar10-accuracy-over-epochs", "kerasnet-cifar10-final-accuracy")


def test_settings_that_differ_are_in_the_names_of_files_without_dots(tmp_path: Path) -> None:
    faster = replace(RUNS[-1], spec=replace(RUNS[-1].spec, coefficient_lr_scale=0.5))
    Records(tmp_path / "other" / "records.jsonl").add([RUNS[-1], faster])
    chosen = ("--only", "activations", "--format", "png")
    assert invoke(tmp_path / "other", *chosen, "--output", tmp_path / "two").exit_code == 0
    names = [f"lenet5-cifar10-coefficient_lr_scale-{scale}-activations.png" for scale in ("0-5", "1-0")]
    assert written(tmp_path / "two") == names
    longer = learned("affine(identity,relu)", accuracies=[50.0, 60.0, 70.0])
    Records(tmp_path / "records.jsonl").add([RUNS[-1], longer])
    (tmp_path / "other" / "records.jsonl").unlink()
    assert invoke(tmp_path, "--only", "activations", "--output", tmp_path / "out").exit_code == 0
    names = (f"lenet5-cifar10-epochs-{epochs}-activations" for epochs in (2, 3))
    assert written(tmp_path / "out") == both(*names)
    result = invoke(tmp_path, "--only", "activations", "--epoch", 3, "--output", tmp_path / "last")
    assert result.stderr == "note: left out, without this epoch or reading: lenet5/cifar10 epochs=2\n"
    assert written(tmp_path / "last") == both("lenet5-cifar10-epochs-3-activations")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "histogram"), "unknown figure 'histogram'; available: activations, coefficients, acc"),
        (("--experiment", "resnet56/cifar10"), "no records of 'resnet56/cifar10'; available: lenet5/cifar10"),
        (
            ("--activation", "relu", "--activation", "affine(relu,tanh)"),
            "no records of 'affine(relu,tanh)'; available: relu, convex(identity,relu,tanh), affine(",
        ),
        (("--activation", "convex(relu"), "invalid activation 'convex(relu'"),
        (("--seed", "7"), "no run has seed 7; available: 0, 1"),
        (("--format", "gif"), "unknown format 'gif'; available: png, pdf, svg"),
        (("missing",), "missing does not exist"),
    ],
)
def test_a_bad_option_is_one_line_exit_code_2_and_no_directory(
    arguments: tuple[str, ...], said: str, records: Path, tmp_path: Path
) -> None:
    result = invoke(records, *arguments, "--output", tmp_path / "new")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"hullo: {said}")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_an_output_that_cannot_be_written_is_one_clear_line(records: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    result = invoke(records, "--only", "accuracy", "--output", tmp_path / "taken")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"cannot write to {tmp_path / 'taken'}: a file of that name" in result.stderr


def test_a_disk_that_is_full_leaves_no_half_figure(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    folder = tmp_path / "out"
    result = invoke(records, "--only", "accuracy", "--output", folder)
    assert result.exit_code == 1
    assert (
        result.stderr
        == f"hullo: cannot write {folder}: No space left on device; free disk space, or choose another path\n"
    )
    assert not list(folder.iterdir())


def recorded(data: str, settings: str) -> Record:
    return replace(RUNS[-1], spec=Spec("net", data, "affine(identity,relu)", epochs=2, settings=settings))


def test_experiments_have_figures_of_their_own_whatever_their_names(tmp_path: Path) -> None:
    names = [("d.x", ""), ("d-x", ""), ("data", "margin=1"), ("data", "margin=-1"), ("a" * 100, f"b={'c' * 100}")]
    names += [("b", "augment=flip shift=1"), ("b", "augment=flip,shift:1")]
    Records(tmp_path / "records.jsonl").add([recorded(*name) for name in names])
    chosen = ("--only", "coefficients", "--dark", "--format", "png", "--output", tmp_path / "out")
    result = invoke(tmp_path, *chosen)
    assert (result.exit_code, result.stderr) == (0, "")
    files = written(tmp_path / "out")
    assert len(files) == 2 * len(names)
    assert max(map(len, files)) < 250
    assert {name.partition("-coefficients")[0] for name in files} >= {"net-d-x", "net-d-x-2", "net-data-margin-1-2"}


def test_files_of_an_own_network_have_its_name_without_the_hash(tmp_path: Path) -> None:
    spec = replace(RUNS[-1].spec, network="mine:Net@1f2e3d4c", data="photos@1f2e3d4c", augment="none")
    Records(tmp_path / "records.jsonl").add([replace(RUNS[-1], spec=spec)])
    assert invoke(tmp_path, "--only", "activations", "--output", tmp_path / "out").exit_code == 0
    assert written(tmp_path / "out") == both("Net-photos-activations")


def test_characters_that_the_font_lacks_are_drawn_without_warnings(tmp_path: Path) -> None:
    Records(tmp_path / "records.jsonl").add([recorded("\u4e2d\u6587", "")])
    result = invoke(tmp_path, "--only", "activations", "--output", tmp_path / "out")
    assert (result.exit_code, result.stderr) == (0, "")
    assert written(tmp_path / "out") == both("net-\u4e2d\u6587-activations")
