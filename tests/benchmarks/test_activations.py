import math
import shutil
import sys
from pathlib import Path

import pytest
import torch

from hullo.kernels import reference

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import activations  # noqa: E402
from activation_rows import ActivationRow, Case, Results  # noqa: E402
from harness import clock_for  # noqa: E402
from rows import read_rows  # noqa: E402

GROUPED = Case((2, 6, 3, 5), "float64", "channels_last", 3)


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Return a function that runs the script and returns its rows."""
    monkeypatch.setattr(torch, "ones", lambda count, **options: torch.zeros(min(count, 2**16), **options))

    def run(*arguments):
        path = tmp_path / "rows.csv"
        activations.main([*arguments, "--device", "cpu", "--rounds", "3", "--csv", str(path)])
        return read_rows(path, ActivationRow)

    return run


def test_four_dimensional_inputs_have_both_memory_formats():
    made = activations.make_cases(["64", "2x4x3x3/4"], ["float32", "float16"])
    assert [str(case) for case in made] == [
        "2^6 float32",
        "2^6 float16",
        "2x4x3x3/4 float32 contiguous",
        "2x4x3x3/4 float32 channels_last",
        "2x4x3x3/4 float16 contiguous",
        "2x4x3x3/4 float16 channels_last",
    ]


@pytest.mark.parametrize("text", ["", "0", "-4", "2^", "2x0", "many", "8/2", "2x5/2", "2x4/0"])
def test_invalid_size_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 (argparse names the argument)
        activations.size(text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside the compiler
@pytest.mark.parametrize("case", [Case((50,), "float64"), GROUPED], ids=str)
@pytest.mark.parametrize("name", ["plain", "compiled", "hullo"])
def test_all_implementations_of_the_hull_agree(name, case):
    if name == "compiled" and not shutil.which("g++"):
        pytest.skip("no compiler here")
    x, dy = (torch.randn(case.shape, dtype=torch.float64) for _ in range(2))
    if case == GROUPED:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    hull, module = (activations.build(each, case).double() for each in ("hullo", name))
    y = module(x)
    dx, dc = torch.autograd.grad(y, (x, *module.parameters()), dy)
    torch.testing.assert_close(y, reference.forward(x, hull.raw, hull.spec))
    expected_dx, expected_draw = reference.backward(dy, x, hull.raw, hull.spec)
    torch.testing.assert_close(dx, expected_dx)
    if name != "hullo":  # the others have coefficients that need not sum to one: take the part along the hull
        dc = dc - dc.mean(-1, keepdim=True)
    torch.testing.assert_close(dc, expected_draw)


@pytest.mark.parametrize(("name", "inputs"), [("relu", 1), ("gelu", 1), ("prelu", 1), ("plain", 3), ("hullo6", 1)])
def test_held_memory_counts_tensors_once_without_parameters(name, inputs):
    x = torch.randn(1000, requires_grad=True)
    assert activations.held_bytes(activations.build(name, Case((1000,), "float32")), x) == inputs * x.nbytes


def test_rows_have_all_passes_their_floor_and_multiples_of_gelu(measure):
    rows = measure("--sizes", "2x6x3x5/3", "--kinds", "eager", "overhead", "--activations", "gelu", "hullo")
    names = [(activation, direction) for activation in ("gelu", "hullo") for direction in activations.MOVED]
    assert [(row.kind, row.layout, row.activation, row.direction) for row in rows] == [
        *(("eager", layout, *name) for layout in ("contiguous", "channels_last") for name in names),
        *(("overhead", "contiguous", *name) for name in names),
    ]
    for row in rows[:12]:
        tensors = {"forward": 2, "backward": 3, "both": 5}[row.direction]
        assert row.bytes_moved == tensors * 4 * math.prod(row.case.shape)
        assert row.floor_ms == pytest.approx(row.bytes_moved / row.bandwidth_gb_s / 1e6, rel=1e-5)
    for forward, backward, both in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        for name in ("p10_ms", "median_ms", "p90_ms"):
            assert getattr(both, name) >= max(getattr(forward, name), getattr(backward, name))
    ratio = rows[5].median_ms / rows[2].median_ms
    assert Results(rows, "eager").gelus(rows[5].case, "hullo", "both") == pytest.approx(ratio)


def test_what_fails_is_left_out_with_a_note(measure, monkeypatch, capsys):
    def refuse(*_, **__):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: refuse)
    sizes = ("--sizes", "2^49", "64", "--dtypes", "float64")
    rows = measure("--kinds", "eager", "--activations", "relu", "compiled", *sizes)
    assert {(row.shape, row.activation) for row in rows} == {("64", "relu")}
    written = capsys.readouterr().out
    assert "compiled of 2^6 float64 left out: RuntimeError: no C++ compiler\n" in written
    assert "eager, 2^49 float64 left out: RuntimeError" in written


def test_rows_with_missing_columns_are_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("device,median_ms\ncpu,1\n")
    with pytest.raises(ValueError, match=r"lacks the columns .*activation"):
        read_rows(tmp_path / "rows.csv", ActivationRow)


@pytest.mark.gpu
def test_cuda_clock_measures_time_and_memory():
    clock = clock_for("cuda")
    inputs = [(torch.randn(4096, device="cuda", requires_grad=True), torch.randn(4096, device="cuda"))]
    assert all(seconds > 0 for seconds in clock.laps(*activations.passes(torch.nn.ReLU(), inputs)))
    assert clock.peak_bytes(*activations.passes(torch.nn.ReLU(), inputs)) >= inputs[0][0].nbytes
