"""GPUs of any maker, and CPUs, through OpenCL 1.2 or newer.

takes: kernels as text; gives: a Driver.
"""

from __future__ import annotations

from .driver import ROUNDED_DIVISION, OpenCLDriver

__all__ = ["ROUNDED_DIVISION", "OpenCLDriver"]
