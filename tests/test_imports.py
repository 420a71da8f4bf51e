"""`import hullo` loads PyTorch and nothing else, says nothing and starts nothing."""

from __future__ import annotations

import subprocess
import sys

MODULES = "import sys, {module}; print('\\n'.join(sorted(name.partition('.')[0] for name in sys.modules)))"


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_importing_hullo_loads_torch_and_the_standard_library_alone() -> None:
    with_torch = set(python(MODULES.format(module="torch")).stdout.split())
    with_hullo = set(python(MODULES.format(module="hullo")).stdout.split())
    others = with_hullo - with_torch - sys.stdlib_module_names
    assert {name for name in others if not name.startswith("__editable__")} == {"hullo"}


def test_importing_hullo_does_not_load_what_torch_loads_on_request() -> None:
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


def test_importing_and_using_hullo_makes_no_noise() -> None:
    done = python(
        "import torch, hullo; hullo.ConvexHull('relu', 'tanh')(torch.randn(3)).sum().backward()", "-W", "error"
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_importing_hullo_leaves_global_settings_alone() -> None:
    state = (
        "(torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed(), torch.random.get_rng_state().sum())"
    )
    code = (
        f"import torch; torch.manual_seed(7); a = {state}; import hullo; hullo.list_bases(); b = {state}; assert a == b"
    )
    python(code)


def test_reading_records_and_making_tables_loads_no_network_no_data_set_and_no_trainer() -> None:
    modules = ("pages.claims", "tables.latex", "tables.terminal", "sources")
    code = f"import sys, {', '.join(f'hullo.lab.analysis.{name}' for name in modules)}; print(*sys.modules)"
    loaded = [name for name in python(code).stdout.split() if name.startswith("hullo.lab.")]
    assert "hullo.lab.spec.records" in loaded
    unwanted = {"data", "networks", "training", "feeds", "grid", "cluster", "recipes", "team", "figures", "report"}
    assert not [name for name in loaded if name.split(".")[2] in unwanted]
