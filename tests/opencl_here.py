"""The OpenCL that tests run kernels with: the system's, or PoCL's wheel with pyopencl's loader."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tvm_forest.errors import DeviceError
from tvm_forest.gpu_runtime.opencl import OpenCLDriver
