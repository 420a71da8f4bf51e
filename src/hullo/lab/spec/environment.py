"""The environment of results, machine and versions, and the choice of a device."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import hullo


@dataclass(frozen=True)
class Environment:
    """The machine and the versions of a measurement or a run."""

    device: str
    threads: int
    python: str
    torch: str
    triton: str
    hullo: str
    commit: str

    def __str__(self) -> str:
        parts = [self.device, f"{self.threads} CPU threads", f"Python {self.python}", f"torch {self.torch}"]
        parts += [f"Triton {self.triton}"] if self.triton else []
        parts += [f"hullo {self.hullo}" + (f" ({self.commit})" if self.commit else "")]
        return ", ".join(parts)


def environment(device_name: str, commit: str | None = None) -> Environment:
    """Return the environment of this process on a device."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = ""
    return Environment(
        device=device_name,
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=torch.__version__,
        triton=triton,
        hullo=hullo.__version__,
        commit=commit or _commit(),
    )


def _commit() -> str:
    """Return the commit of the checkout, with "-dirty" if files were changed; "" if hullo is installed."""
    git, package = shutil.which("git"), Path(hullo.__file__)
    if git is None:
        return ""
    for command in (
        ["ls-files", "--error-unmatch", package.name],
        ["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"],
    ):
        run = subprocess.run([git, "-C", str(package.parent), *command], capture_output=True, text=True, check=False)  # noqa: S603
        if run.returncode:
            return ""
    return run.stdout.strip()


def choose_device(device: str | None) -> torch.device:
    """Return a device by name; by default a CUDA device if available, else the CPU.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ValueError(f"unknown device {device!r}; must be cpu, cuda or cuda:N") from None
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device {device!r} is not supported; use cpu or cuda")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device!r}: PyTorch finds {torch.cuda.device_count()} CUDA devices, from cuda:0")
    return torch.device("cuda", chosen.index or 0) if chosen.type == "cuda" else chosen


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
