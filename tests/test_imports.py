"""Test that `import hullo` loads only PyTorch, prints nothing and starts nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hullo
import hullo.lab
from hullo.lab.spec.records import Records
from made_records import make_record

IMPORT = """
import signal, sys, torch
sys.argv = ["hullo", "--help"]
torch.manual_seed(7)
before = set(sys.modules)
handlers = lambda: [signal.getsignal(number) for number in signal.valid_signals()]
numbers = lambda: (torch.get_num_threads(), torch.get_default_dtype(), torch.random.get_rng_state().tolist())
settings = lambda: (handlers(), numbers())
at_start = settings()
import hullo
hullo.ConvexHull("relu", "tanh")(torch.ones(3)).sum().backward()
assert settings() == at_start
print(*(set(sys.modules) - before))
"""


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_importing_hullo_loads_little_prints_nothing_and_changes_no_setting() -> None:
    done = python(IMPORT, "-W", "error")
    assert done.stderr == ""
    loaded = set(done.stdout.split())
    assert not {"torch._dynamo", "torch._inductor", "triton", "hullo.lab", "hullo.keras"} & loaded
    packages = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert {name for name in packages if not name.startswith("__editable__")} == {"hullo", "torch"}
    assert len([name for name in loaded if name.partition(".")[0] == "hullo"]) <= 40
    assert len(done.stdout.splitlines()) == 1


def test_table_command_loads_no_network_data_set_or_trainer(tmp_path: Path) -> None:
    Records(tmp_path / "records.jsonl").add([make_record("relu", [80.0])])
    code = f"""
import sys
from hullo.lab.cli import app
for arguments in (["table", "--help"], ["table", {str(tmp_path)!r}]):
    try:
        app(arguments)
    except SystemExit as end:
        assert not end.code
print("loaded:", *sys.modules)
"""
    loaded = python(code).stdout.partition("loaded:")[2].split()
    assert "hullo.lab.spec.records" in loaded
    unwanted = ("data", "networks", "run", "analysis.figures", "analysis.report")
    packages = ("hullo.population", "matplotlib", *(f"hullo.lab.{name}" for name in unwanted))
    assert not [name for name in loaded if name.startswith(packages)]


@pytest.mark.parametrize(
    ("code", "package"),
    [
        ("from hullo.lab import compare", "safetensors"),
        ("import hullo.keras", "keras"),
        ("import hullo; hullo.plot(hullo.AffineHull('relu'))", "matplotlib"),
        ("from hullo.__main__ import main; main()", "typer"),
    ],
)
def test_without_its_extra_an_import_names_the_package_and_the_command(code: str, package: str) -> None:
    absent = f"import sys; sys.argv = ['hullo']; sys.modules[{package!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", absent], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert package in last
    assert "pip install" in last


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    assert dir(hullo) == sorted(hullo.__all__)
    assert dir(hullo.lab) == sorted(hullo.lab.__all__)
    assert len(hullo.__all__) <= 22
    assert all(hasattr(module, name) for module in (hullo, hullo.lab) for name in dir(module))
