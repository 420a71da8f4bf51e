import re
import subprocess
import sys

from typer.testing import CliRunner

import hullo
from hullo.lab.bench import measure, results
from hullo.lab.cli import app

TINY = ["bench", "--device", "cpu", "--sizes", "512,2x4x3x3/4", "--activations", "relu,gelu,hullo", "--repeats", "3"]


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_version_option_prints_the_version():
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"hullo {hullo.__version__}\n")


def test_shells_complete_commands_and_options():
    for words, expected in (("hullo tr", "train"), ("hullo train --op", "--optimizer")):
        environment = {"_HULLO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert CliRunner().invoke(app, [], env=environment, prog_name="hullo").stdout.split() == [expected]


def test_bench_measures_prints_and_saves(tmp_path):
    result = invoke(*TINY, "--dtypes", "float32,bfloat16", "--output", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cpu.csv", "cpu.png"]
    assert (tmp_path / "cpu.png").read_bytes().startswith(b"\x89PNG")
    actual = results.read_rows(tmp_path / "cpu.csv")
    cases = {str(row.case) for row in actual if row.kind == "eager"}
    assert cases == {f"2^9 {dtype}" for dtype in ("float32", "bfloat16")} | {
        f"2x4x3x3/4 {dtype} {layout}" for dtype in ("float32", "bfloat16") for layout in ("contiguous", "channels_last")
    }
    assert all(0 < row.p10_ms <= row.median_ms <= row.p90_ms for row in actual)
    assert {(row.hullo, row.repeats) for row in actual} == {(hullo.__version__, 3)}
    for case in cases:
        assert case in result.stdout
    assert "[1/7] 2^9 float32" in result.stderr
    assert "[7/7] overhead of a call" in result.stderr


def test_quiet_bench_prints_only_tables():
    result = invoke(*TINY, "--quiet")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "2^9 float32" in result.stdout


def test_without_eager_rows_there_is_no_chart(tmp_path):
    result = invoke("bench", "--device", "cpu", "--sizes", "2^49", "--activations", "relu", "--output", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "note: not enough memory; not measured: 2^49 float32" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["cpu.csv"]


def test_interrupted_bench_keeps_its_results(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure.Bench, "overhead", interrupt)
    result = invoke(*TINY, "--output", str(tmp_path))
    assert result.exit_code != 0
    assert {row.kind for row in results.read_rows(tmp_path / "cpu.csv")} == {"eager"}


def test_missing_packages_are_one_line_with_install_command():
    code = "import sys; sys.modules['typer'] = None; from hullo.__main__ import main; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert re.fullmatch(r"hullo: .* needs typer; .*pip install '\.\[lab\]'.*\n", run.stderr)
