from dataclasses import replace

import pytest
from tiny_releases import FASHION
from typer.testing import CliRunner

from hullo.lab.cli import app
from hullo.lab.data import RELEASES
from hullo.lab.spec.recipes import AUGMENTATIONS


def invoke(*arguments, **environment):
    return CliRunner().invoke(app, ["data", *arguments], env={"HULLO_DATA": None, **environment})


@pytest.fixture(autouse=True)
def served(tiny, site, monkeypatch):
    """Serve the tiny Fashion-MNIST at the address of the misbehaving server."""
    site.files.update(FASHION)
    monkeypatch.setitem(RELEASES, "fashion-mnist", replace(tiny, address=site.address))
    return site


def test_fetch_check_and_list_agree(tmp_path, served):
    missing = invoke("check", "fashion-mnist", "--data", str(tmp_path))
    assert missing.exit_code == 1
    assert missing.stdout.count("is missing; run: hullo data fetch") == 4
    assert "not fetched" in invoke("list", HULLO_DATA=str(tmp_path)).stdout

    fetched = invoke("fetch", "fashion-mnist", "--data", str(tmp_path))
    assert fetched.exit_code == 0
    assert fetched.stdout == f"fashion-mnist is ready in {tmp_path / 'fashion-mnist'}\n"
    assert "[1/4] train-images-idx3-ubyte.gz" in fetched.stderr
    assert "[4/4] t10k-labels-idx1-ubyte.gz" in fetched.stderr

    again = invoke("fetch", "fashion-mnist", HULLO_DATA=str(tmp_path))
    assert (again.exit_code, again.stderr) == (0, "")
    assert len(served.asked) == 4
    checked = invoke("check", "fashion-mnist", "fashion-mnist-sample", HULLO_DATA=str(tmp_path))
    assert checked.exit_code == 0
    assert checked.stdout.count("is ready in") == 2

    (tmp_path / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"x")
    damaged = invoke("check", "fashion-mnist", "--data", str(tmp_path))
    assert damaged.exit_code == 1
    assert "t10k-labels-idx1-ubyte.gz is truncated after 1 of" in damaged.stdout
    listed = " ".join(invoke("list", "--data", str(tmp_path)).stdout.split())
    assert "1 of 4 files" in listed
    assert "not fetched" in listed
    assert "ready" in listed


def test_without_names_all_data_sets_are_used(tmp_path):
    checked = invoke("check", "--data", str(tmp_path))
    assert checked.exit_code == 1
    assert checked.stdout.count("is missing") == sum(len(item.files) for item in RELEASES.values() if item.address)
    assert checked.stdout.count("is ready in") == 1


def test_quiet_fetch_prints_only_the_result(tmp_path):
    result = invoke("fetch", "fashion-mnist", "--quiet", "--data", str(tmp_path))
    assert (result.exit_code, result.stderr) == (0, "")


def test_failed_fetch_is_one_line_and_exit_code_1(tmp_path, served):
    del served.files["train-images-idx3-ubyte.gz"]
    result = invoke("fetch", "fashion-mnist", "--quiet", "--data", str(tmp_path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"hullo: cannot fetch {served.address}train-images-idx3-ubyte.gz: HTTP Error 404")
    assert result.stderr.endswith(f"fetch it again with: hullo data fetch fashion-mnist --data {tmp_path}\n")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["fetch", "check"])
def test_unknown_name_is_one_line_and_exit_code_2(command, tmp_path, served):
    result = invoke(command, "fashion-mnist", "imagenet", "--data", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"hullo: unknown data set 'imagenet'; available: {', '.join(AUGMENTATIONS)}\n"
    assert served.asked == []
