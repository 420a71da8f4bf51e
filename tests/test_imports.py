"""Test that `import hullo` loads only PyTorch, prints nothing and starts nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hullo.lab.spec.records import Records
from made_records import make_record

MODULES = "import sys, {module}; print('\\n'.join(sorted(name.partition('.')[0] for name in sys.modules)))"


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_importing_hullo_loads_only_torch_and_the_standard_library() -> None:
    with_torch = set(python(MODULES.format(module="torch")).stdout.split())
    with_hullo = set(python(MODULES.format(module="hullo")).stdout.split())
    others = with_hullo - with_torch - sys.stdlib_module_names
    assert {name for name in others if not name.startswith("__editable__")} == {"hullo"}


def test_importing_hullo_does_not_load_optional_torch_modules() -> None:
    loaded = python("import sys, hullo; print('\\n'.join(sys.modules))").stdout.split()
    unwanted = {
        "torch._dynamo",
        "torch._inductor",
        "triton",
        "keras",
        "matplotlib",
        "rich",
        "typer",
        "hullo.lab",
        "hullo.keras",
    }
    assert not unwanted & set(loaded)


def test_importing_and_using_hullo_prints_nothing() -> None:
    done = python(
        "import torch, hullo; hullo.ConvexHull('relu', 'tanh')(torch.randn(3)).sum().backward()", "-W", "error"
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_importing_hullo_does_not_change_global_settings() -> None:
    state = (
        "(torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed(), torch.random.get_rng_state().sum())"
    )
    code = (
        f"import torch; torch.manual_seed(7); a = {state}; import hullo; hullo.list_bases(); b = {state}; assert a == b"
    )
    python(code)


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
    unwanted = ("data", "networks", "run", "bench", "analysis.figures", "analysis.report")
    packages = ("hullo.population", "matplotlib", *(f"hullo.lab.{name}" for name in unwanted))
    assert not [name for name in loaded if name.startswith(packages)]
