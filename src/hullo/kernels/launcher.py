"""Launch a kernel that Triton has compiled, from C and with the addresses of tensors as the only new arguments.

Triton's own launcher parses all arguments of a kernel at every launch, its constants too, and Python has to build them.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import struct
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import triton  # type: ignore[import-untyped]

from hullo._compat import current_cuda_stream

IS_KNOWN = triton.__version__.startswith("3.6.")
"""Whether the parameters of a compiled kernel are known; they differ between versions of Triton."""

MOST_PARAMETERS = 32
"""As many as a plan has in the source below."""

SOURCE = r"""
#include <Python.h>
#include "cuda.h"

typedef CUresult (*Launch)(const CUlaunchConfig *, CUfunction, void **, void **);
typedef struct {
    Launch launch;
    CUfunction function;
    uint64_t programs, threads, shared_memory, early, count, values[32];
} Plan;

static PyObject *data_ptr;

/* Launch with tensors. Return False, without a launch, if an address is not divisible by 16, or on an error of CUDA. */
static PyObject *run(PyObject *self, PyObject *const *tensors, Py_ssize_t count) {
    Plan plan;
    void *parameters[32];
    memcpy(&plan, PyBytes_AS_STRING(PyTuple_GET_ITEM(self, 0)), sizeof plan);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *address = PyObject_CallMethodNoArgs(tensors[i], data_ptr);
        if (!address) return NULL;
        plan.values[i] = PyLong_AsUnsignedLongLong(address);
        Py_DECREF(address);
        if (plan.values[i] & 15) Py_RETURN_FALSE;
    }
    for (uint64_t i = 0; i < plan.count; i++) parameters[i] = &plan.values[i];
    PyObject *stream = PyObject_CallOneArg(PyTuple_GET_ITEM(self, 1), PyTuple_GET_ITEM(self, 2));
    if (!stream) return NULL;
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = {plan.programs, 1, 1, plan.threads, 1, 1, plan.shared_memory,
                             (CUstream)PyLong_AsUnsignedLongLong(stream), &early, plan.early};
    Py_DECREF(stream);
    if (PyErr_Occurred()) return NULL;
    CUresult failed;
    Py_BEGIN_ALLOW_THREADS
    failed = plan.launch(&config, plan.function, parameters, NULL);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(!failed);
}

static PyMethodDef launcher = {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, NULL};
static PyObject *bind(PyObject *module, PyObject *state) { return PyCFunction_New(&launcher, state); }

static PyMethodDef methods[] = {{"bind", bind, METH_VARARGS, NULL}, {NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "hullo_launcher", NULL, -1, methods};
PyMODINIT_FUNC PyInit_hullo_launcher(void) {
    data_ptr = PyUnicode_InternFromString("data_ptr");
    return PyModule_Create(&definition);
}
"""


def bind(
    compiled: Any, programs: int, device: int | None, tensors: int, rest: Sequence[int]
) -> Callable[..., bool] | None:
    """Return a function that launches a compiled kernel with the given number of tensors, then `rest`.

    It returns whether it has launched the kernel. If not, launch it with Triton, which compiles it for other addresses,
    makes a CUDA context in a new thread, or raises the error. Return None if the kernel's parameters are not known.
    """
    launcher, module = compiled.run, _module()
    if module is None or type(launcher).__name__ != "CudaLauncher":
        return None
    warps, clusters, shared_memory = compiled.packed_metadata
    if launcher.global_scratch_size or launcher.launch_cooperative_grid or clusters != 1:
        return None
    kinds = list(compiled.src.signature.values())[tensors:]
    numbers = [number for number, kind in zip(rest, kinds, strict=True) if kind != "constexpr"]
    values = [0] * tensors + numbers + [0, 0]  # scratch memory, of which there is none
    if len(values) > MOST_PARAMETERS:
        return None
    plan = struct.pack(
        f"=7Q{MOST_PARAMETERS}q", _launch_address(), compiled.function, programs, 32 * warps, shared_memory,
        launcher.launch_pdl, len(values), *values, *[0] * (MOST_PARAMETERS - len(values)),
    )  # fmt: skip
    bound: Callable[..., bool] = module.bind(plan, current_cuda_stream, device, compiled)
    return bound


def _launch_address() -> int | None:
    return ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx, ctypes.c_void_p).value


@functools.cache
def _module() -> Any:
    """Return the compiled source; None if this is another version of Triton, or the source cannot be compiled."""
    if not IS_KNOWN:
        return None
    try:
        from triton.backends.nvidia.driver import include_dirs  # type: ignore[import-untyped]
        from triton.runtime.build import compile_module_from_src  # type: ignore[import-untyped]

        _launch_address()
        return compile_module_from_src(SOURCE, "hullo_launcher", include_dirs=include_dirs)
    except (AttributeError, ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        logging.getLogger(__name__).info("kernels are launched by Triton, which takes longer: %s", error)
        return None
