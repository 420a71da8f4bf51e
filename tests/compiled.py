"""Compile the kernels that a program launches, without a GPU: the interpreter runs what a compiler refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

MOST_PROGRAMS = (2**31 - 1, 2**16 - 1, 2**16 - 1)
"""In each dimension of a grid, by CUDA."""


class Compiled(NamedTuple):
    """Hold the code of a launched kernel, and what a program takes."""

    name: str
    module: str
    ptx: str
    registers: int
    stack: int
    warps: int
    shared: int


def run_without_interpreter(*program: str) -> list[list[str]]:
    """Run Python in a process whose Triton compiles, and return the words of each line that it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    done = subprocess.run([sys.executable, *program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def compile_launches(major: int = 9, minor: int = 0) -> list[Compiled]:
    """Compile every kernel that is launched from now on, once, and run none; return the list to which they are added.

    Call it before kernels are imported, and give them tensors on the device "meta". They are compiled for GPUs of a
    compute capability.
    """
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    class Driver:
        """Stand for the driver of a GPU that is not there."""

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 10 * major + minor, 32)

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        assert all(0 < size <= most for size, most in zip(grid, MOST_PROGRAMS, strict=False)), (self.fn, grid)
        made = compile_kernel(self, *args, grid=grid, warmup=True, **options)
        if id(made) not in seen:
            seen[id(made)] = made
            usage = *_resources(made.asm["cubin"]), made.metadata.num_warps, made.metadata.shared
            found.append(Compiled(self.fn.__name__, self.fn.__module__, made.asm["ptx"], *usage))

    seen: dict[int, Any] = {}
    found: list[Compiled] = []
    compile_kernel: Any = JITFunction.run
    JITFunction.run = run
    triton.runtime.driver.set_active(Driver())
    torch.version.cuda = torch.version.cuda or "13.0"  # functions mean what they mean on a GPU
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    return found


def _resources(code: bytes) -> tuple[int, int]:
    """Return the registers of a thread, and the bytes of its stack."""
    import triton

    with tempfile.NamedTemporaryFile() as file:
        file.write(code)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()  # type: ignore[union-attr]
    return int(registers), int(stack)
