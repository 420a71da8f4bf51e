"""Compile the population's kernels for a Hopper GPU, which needs none, and print their registers and spills.

    python benchmarks/kernel_registers.py

Kernels are compiled as for a launch with these types and constants, of pointers and sizes that are multiples of 16.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ["TRITON_INTERPRET"] = "0"  # before Triton is imported

import triton  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]


class Launch(NamedTuple):
    """A kernel as it is launched: its name, the types of its arguments, constants, and options of the compiler."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, int] = {}


def launches() -> Iterator[Launch]:
    """Yield the kernels to compile."""
    from hullo.population.kernels.dropout import _drop

    numbers = dict.fromkeys(("seeds", "steps"), "*i64") | {"least_ptr": "*i32", "scale_ptr": "*fp32"}
    sizes = dict.fromkeys(("rows", "columns", "repeats", "mask_stride", "member_stride", "row_stride", "start"), "i32")
    for dtype in ("bf16", "fp32"):
        for tile in ((1, 1024), (32, 32)):
            types = {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", **numbers, **sizes}
            constants = {"PURPOSE": 4, "LEAST": -19661, "SCALE": 1.25, "EACH": False, "TOGETHER": True}
            shape = dict(zip(("ROWS", "COLUMNS"), tile, strict=True))
            yield Launch(f"dropout {dtype} {tile[0]}x{tile[1]}", _drop, types, constants | shape)

    yield from _recurrent()


def _recurrent() -> Iterator[Launch]:
    from hullo.population.kernels import recurrence

    for name, kernel in (("forward", recurrence._forward), ("backward", recurrence._backward)):
        for kind in ("lstm", "gru", "tanh"):
            wide = ("past_memory_ptr", "memory_ptr", "carry_ptr")
            pointers = [item for item in kernel.arg_names if item.endswith("_ptr")]
            types = {item: "*fp32" if item in wide else "*bf16" for item in pointers}
            types |= {item: "i32" for item in kernel.arg_names if item.endswith("stride") or item in ("size", "width")}
            flag = {"BIAS": True} if name == "forward" else {"FOLLOWING": True}
            yield Launch(f"{kind} {name}", kernel, types, {**flag, "KIND": kind, "BLOCK": recurrence.BLOCK})


def registers(launch: Launch) -> tuple[int, int]:
    """Return the registers of a thread, and the bytes that it spills."""
    names = launch.kernel.arg_names
    signature = {name: launch.types.get(name, "constexpr") for name in names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in launch.types}
    source = ASTSource(launch.kernel, signature, launch.constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=launch.options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(compiled.asm["ptx"])
        ptxas = triton.knobs.nvidia.ptxas.path
        command = [ptxas, "-v", "--gpu-name=sm_90a", str(path), "-o", os.devnull]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = [re.findall(pattern, report) for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill \w+")]
    return max(map(int, found[0])), sum(map(int, found[1]))


def main() -> None:
    print(f"{'kernel':40} {'registers':>9} {'spilled bytes':>14}")
    for launch in launches():
        used, spilled = registers(launch)
        print(f"{launch.name:40} {used:9} {spilled:14}", flush=True)


if __name__ == "__main__":
    main()
