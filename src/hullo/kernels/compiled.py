"""Compile the CPU kernels of a set of bases with the system's C compiler, and call them.

Libraries are kept in the user's cache directory, one file per source, compiler and processor. A file ends with a digest
of its contents, which is checked before it is loaded, and is written under another name first: a damaged file is built
again, and processes that build the same file at once do not disturb each other.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from hullo.bases import Base
from hullo.kernels.c_codegen import c_source
from hullo.kernels.spec import CombineSpec

WORTHWHILE = 2**8
"""The smallest number of elements for which a compiled kernel is used. The choice depends on the tensor alone, so a
resumed run gives the same bits."""

FLAGS = (
    *("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-thread-jumps", "-fschedule-insns"),
    *("-fopenmp-simd", "-fPIC", "-shared", "-w"),
)
NATIVE = ("-march=native", "-mcpu=native")
"""How compilers spell "for this processor"; the first that one accepts is used."""

GRAIN = 2**15
"""Elements for which a second thread is worthwhile, as in PyTorch's own operations."""

Library = Callable[..., int]
_log = logging.getLogger(__name__)
_loaded: dict[tuple[tuple[Base, ...], bool], Library | None] = {}  # None where blocks serve


def library(x: Tensor, spec: CombineSpec) -> Library | None:
    """Return the compiled kernel for x; None where there is none, or compiling it is not worthwhile."""
    if x.numel() < WORTHWHILE or x.dtype == torch.float64:
        return None
    key = (spec.bases, x.dtype == torch.bfloat16)
    if key not in _loaded:
        _loaded[key] = _load(*key) if spec.has_formulas else None
    return _loaded[key]


def run(
    library: Library,
    x: Tensor,
    gradient: Tensor | None,
    coefficients: Tensor,
    out: Tensor,
    coefficients_gradient: Tensor | None,
    extents: tuple[int, int, int],
) -> None:
    """Compute the combination, or, with a gradient, the gradients of x and of the coefficients.

    All tensors are dense and have the memory layout of x, a tensor of the given extents.
    """
    threads = min(torch.get_num_threads(), -(-x.numel() // GRAIN))
    failed = library(
        _parallel(),
        threads,
        x.data_ptr(),
        None if gradient is None else gradient.data_ptr(),
        coefficients.data_ptr(),
        out.data_ptr(),
        None if coefficients_gradient is None else coefficients_gradient.data_ptr(),
        *extents,
    )
    if failed:
        raise MemoryError(f"not enough memory for the sums of {x.numel():,} elements; use a smaller batch")


@functools.cache
def _parallel() -> ctypes.c_void_p | None:
    """Return the function that runs a function in the threads of PyTorch's OpenMP runtime; None if it has another."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p)
    except (AttributeError, OSError, TypeError):
        return None


def _load(bases: tuple[Base, ...], bfloat16: bool) -> Library | None:
    """Compile and load the kernel of some bases; None where that is turned off or fails."""
    if os.environ.get("HULLO_COMPILE") == "0" or (_parallel() is None and torch.get_num_threads() > 1):
        return None
    try:
        function: Library = _build(c_source(bases, bfloat16), _compiler()).run
    except (OSError, AttributeError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        _log.info("hulls on the CPU are computed in blocks of PyTorch's operations: %s", error)
        return None
    pointer, long = ctypes.c_void_p, ctypes.c_long
    function.argtypes = [pointer, ctypes.c_uint, *[pointer] * 5, *[long] * 3]  # type: ignore[attr-defined]
    return function


def _compiler() -> list[str]:
    """Return the command of the C compiler."""
    name, *options = shlex.split(os.environ.get("CC") or "cc")
    path = shutil.which(name)
    if path is None:
        raise OSError(f"there is no C compiler {name!r}")
    return [path, *options]


def _build(source: str, compiler: list[str]) -> ctypes.CDLL:
    """Return the library of a source, from the cache where it is valid."""
    made_by = os.stat(compiler[0])
    identity = (source, compiler, made_by.st_size, made_by.st_mtime_ns, FLAGS, NATIVE, *_processor())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hullo", "kernels")
    path = folder / f"{hashlib.sha256(repr(identity).encode()).hexdigest()}.so"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid not in (0, os.getuid()):
        raise PermissionError(f"{folder} belongs to another user, whose code would run")
    if not _is_valid(path):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = _compile(source, compiler, Path(scratch))
            with made.open("ab") as file:
                file.write(_digest(made.read_bytes()))
            made.replace(path)
    return ctypes.CDLL(str(path))


def _compile(source: str, compiler: list[str], folder: Path) -> Path:
    text, made = folder / "kernel.c", folder / "kernel.so"
    text.write_text(source, encoding="utf-8")
    for native in NATIVE:
        command = [*compiler, *FLAGS, native, str(text), "-o", str(made), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)  # noqa: S603  (the user's compiler)
        if done.returncode == 0 and made.is_file():
            return made
    raise OSError(f"{shlex.join(command)} failed with status {done.returncode}: {done.stderr.strip()[:500]}")


def _digest(contents: bytes) -> bytes:
    return hashlib.sha256(contents).digest()


def _is_valid(path: Path) -> bool:
    """Return whether a library is complete: loading a damaged one can end the process."""
    try:
        contents = path.read_bytes()
    except OSError:
        return False
    return contents[-32:] == _digest(contents[:-32])


@functools.cache
def _processor() -> tuple[str, ...]:
    """Return what tells processors with different instructions apart: a home directory may serve several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine(), platform.processor()
    about = {line.partition(":")[0].strip(): line for line in lines}
    return platform.machine(), *(about.get(key, "") for key in ("model name", "flags", "Features", "CPU part"))
