"""Where the functions are that launch kernels and multiply, for C."""

from __future__ import annotations

import ctypes

from weft.run.gpu.driver import DRIVER, LIBRARY, function

NAMES = (
    (DRIVER, "cuLaunchKernel"),
    (DRIVER, "cuLaunchCooperativeKernel"),
    (LIBRARY, "cublasSgemm_v2"),
    (LIBRARY, "cublasGemmEx"),
    (DRIVER, "cuMemsetD8Async"),
    (DRIVER, "cuMemcpyDtoDAsync_v2"),
)


def functions() -> tuple[int, ...] | None:
    """Their addresses, in the order in which C expects them; None where one is not to be found."""
    found = [function(*name) for name in NAMES]
    if None in found:
        return None
    return tuple([ctypes.cast(one, ctypes.c_void_p).value or 0 for one in found])
