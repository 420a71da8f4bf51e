import math
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hullo.kernels import reference
from hullo.lab.analysis.figures import style
from hullo.lab.bench import cases, clocks, measure, results
from hullo.lab.bench.cases import DTYPES, Case, make_cases, parse_names, parse_sizes, spell_size
from hullo.lab.bench.measure import Bench
from hullo.lab.bench.results import Results, draw_chart, number, terminal_tables
from hullo.lab.progress import Progress
from hullo.lab.spec.environment import environment

FLAT = Case((4096,), "float32")
GROUPED = Case((2, 6, 3, 5), "float32", "channels_last", 3)
HULLS = ("plain", "stacked", "compiled", "hullo")


@pytest.fixture
def bench() -> Bench:
    clock = clocks.Timer(torch.device("cpu"))
    clock.copy_bytes = 2**20
    names = ("gelu", "plain", "hullo")
    return Bench(clock, environment(clock.device_name), names, 4, Progress(Console(quiet=True), quiet=True))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=4), st.integers(1, 6))
def test_sizes_are_parsed(shape, per_group):
    groups = 1 if len(shape) == 1 else shape[1]
    if len(shape) > 1:
        shape[1] *= per_group
    assert parse_sizes(spell_size(tuple(shape), groups)) == [(tuple(shape), groups)]


@pytest.mark.parametrize("text", ["", "0", "-4", "2^", "2x0", "many", "8/2", "2x5/2", "2x4/0", "2^99", "1,,2"])
def test_invalid_size_is_rejected_and_quoted(text):
    with pytest.raises(ValueError, match=r"'.*'"):
        parse_sizes(text)


def test_four_dimensional_inputs_have_both_memory_formats():
    made = make_cases(parse_sizes("64,2x4x3x3/4"), parse_names("float32,float16", DTYPES, "dtype"))
    assert [str(case) for case in made] == [
        "2^6 float32",
        "2^6 float16",
        "2x4x3x3/4 float32 contiguous",
        "2x4x3x3/4 float32 channels_last",
        "2x4x3x3/4 float16 contiguous",
        "2x4x3x3/4 float16 channels_last",
    ]
    drawn = made[3].draw(torch.device("cpu"))
    assert drawn.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside the compiler
@pytest.mark.parametrize("case", [Case((50,), "float64"), Case((2, 6, 3, 5), "float64", "channels_last", 3)], ids=str)
@pytest.mark.parametrize("name", HULLS)
def test_all_implementations_of_the_hull_agree(name, case):
    if name == "compiled" and not shutil.which("g++"):
        pytest.skip("no compiler here")
    torch.compiler.reset()
    x = case.draw(torch.device("cpu")).requires_grad_()
    dy = case.draw(torch.device("cpu"))
    hull = cases.CONTENDERS["hullo"].build(case.groups, case.channels).double()
    module = cases.CONTENDERS[name].build(case.groups, case.channels).double()
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
    module = cases.CONTENDERS[name].build(1, 1)
    x = torch.randn(1000, requires_grad=True)
    assert measure.held_bytes(module, x) == inputs * x.nbytes


def test_floor_is_minimal_traffic_over_copy_bandwidth(bench):
    for case in (FLAT, GROUPED):
        result = bench.eager(case)
        assert {row.bandwidth_gb_s for row in result} == {result[0].bandwidth_gb_s}
        for row in result:
            tensors = {"forward": 2, "backward": 3, "both": 5}[row.direction]
            elements = math.prod(case.shape)
            assert row.floor_ms == pytest.approx(tensors * 4 * elements / row.bandwidth_gb_s / 1e6)
            assert row.floors == pytest.approx(row.median_ms / row.floor_ms)


def test_every_contender_has_a_row_per_pass(bench):
    result = bench.eager(GROUPED)
    assert [(row.activation, row.direction) for row in result] == [
        (name, direction) for name in bench.activations for direction in ("forward", "backward", "both")
    ]
    assert all(row.case == GROUPED and row.repeats == 4 for row in result)
    for forward, backward, both in zip(result[::3], result[1::3], result[2::3], strict=True):
        for name in ("p10_ms", "median_ms", "p90_ms"):
            assert getattr(both, name) >= max(getattr(forward, name), getattr(backward, name))


def test_missing_compiler_skips_the_compiled_hull_with_a_note(bench, monkeypatch, capsys):
    def refuse(*_, **__):
        raise RuntimeError("no C++ compiler\n\nand a long story")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: refuse)
    both = Bench(bench.clock, bench.environment, ("relu", "compiled"), 1, bench.progress)
    assert {row.activation for row in both.eager(FLAT)} == {"relu"}
    assert "compiled is left out of 2^12 float32: RuntimeError: no C++ compiler\n" in capsys.readouterr().err


def test_input_too_large_for_memory_is_skipped_with_a_note(bench, capsys):
    result = [row for part in bench.run([Case((2**49,), "float64"), FLAT]) for row in part]
    assert {row.case for row in result} == {FLAT, measure.TINY}
    assert "not enough memory; not measured: 2^49 float64" in capsys.readouterr().err


def test_errors_of_contenders_are_raised(bench, monkeypatch):
    broken = cases.Contender("broken", lambda groups, channels: torch.nn.Linear(3, 3))
    monkeypatch.setitem(cases.CONTENDERS, "gelu", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        bench.eager(FLAT)


def test_rows_round_trip_through_a_file(bench, tmp_path):
    result = bench.overhead() + bench.eager(GROUPED)
    results.write_rows(tmp_path / "rows.csv", result)
    read = results.read_rows(tmp_path / "rows.csv")
    for kept, row in zip(read, result, strict=True):
        for name in results.COLUMNS:
            value = getattr(row, name)
            assert getattr(kept, name) == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)


def test_rows_with_missing_columns_are_rejected(tmp_path):
    (tmp_path / "rows.csv").write_text("device,median_ms\ncpu,1\n")
    with pytest.raises(ValueError, match=r"lacks the columns .*activation"):
        results.read_rows(tmp_path / "rows.csv")


def test_table_shows_multiples_of_gelu(bench):
    result = bench.eager(FLAT)
    times = {(row.activation, row.direction): row.median_ms for row in result}
    ratio = times["hullo", "both"] / times["gelu", "both"]
    assert Results(result, "eager").gelus(FLAT, "hullo", "both") == pytest.approx(ratio)
    console = Console(width=120)
    with console.capture() as shown:
        console.print(*terminal_tables(result))
    line = next(line for line in shown.get().splitlines() if "hull, hullo" in line)
    assert line.split()[-2:] == [number(ratio), "1.00"]


def test_chart_is_a_reproducible_image(bench, tmp_path, monkeypatch):
    actual = bench.eager(FLAT) + bench.eager(Case((4096,), "float16"))
    drawn = []
    save = style.save

    def keep(figure, *arguments, **options):
        drawn.append(figure)
        return save(figure, *arguments, **options)

    monkeypatch.setattr(style, "save", keep)
    for name in ("a.png", "b.png"):
        draw_chart(actual, tmp_path / name)
    panel, _ = drawn[0].axes
    assert panel.get_xscale() == "log"  # 1.0 and 1.5 are told apart beside 12
    known = Results(actual, "eager")
    expected = [known.floors(FLAT, name, "forward") for name in known.activations]
    assert panel.containers[0].lines[0].get_xdata() == pytest.approx(expected)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.gpu
def test_cuda_clock_measures_time_and_memory():
    clock = clocks.clock_for("cuda")
    inputs = [(torch.randn(4096, device="cuda", requires_grad=True), torch.randn(4096, device="cuda"))]
    assert all(seconds > 0 for seconds in clock.laps(*measure.passes(torch.nn.ReLU(), inputs)))
    assert clock.peak_bytes(*measure.passes(torch.nn.ReLU(), inputs)) >= inputs[0][0].nbytes
