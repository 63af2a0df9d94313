"""Functions for a child process: some answer, some never do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from tvm_forest.errors import BuildError
from tvm_forest.search.measuring.measure import prepare


def add(first: int, second: int) -> int:
    print("words on the standard output are no answer")
    return first + second


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def spin() -> None:
    while True:
        pass


def wait() -> None:
    threading.Event().wait()


def work_on(core: int, seconds: float) -> str:
    """Be busy for so long on one core, also with a thread and a process of its own."""
    os.sched_setaffinity(0, {core})
    thread = threading.Thread(target=_busy, args=(seconds / 3,))
    own = f"import time\nwhile time.process_time() < {seconds / 3}: pass"
    thread.start()
    _busy(seconds / 3)
    thread.join()
    subprocess.run([sys.executable, "-I", "-S", "-c", own], check=True)
    return "done"


def _busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def spin_on(core: int) -> None:
    os.sched_setaffinity(0, {core})
    spin()


def grow() -> None:
    held = []
    while True:
        held.append(bytearray(2**22))


def fail(error: str) -> None:
    raise BuildError(error) if error else RuntimeError("a bug")


def process() -> int:
    return os.getpid()


def imported(module: str) -> bool:
    return module in sys.modules


_counted = [0]


def count() -> None:
    _counted[0] += 1


def counted() -> int:
    return _counted[0]


def prepare_emulated(bench: Any) -> None:
    """Do what a child does first, and let it run kernels for CUDA on the emulated driver."""
    from emulated_cuda import libcuda, translate
    from tvm_forest.runtime.gpu.cuda import CudaDriver
    from tvm_forest.targets import backends

    driver = CudaDriver(library=libcuda())
    vars(backends)["open_driver"] = lambda kind, device: driver
    vars(backends.cuda_compiler)["compile_cuda"] = translate
    prepare(bench)


def prepare_failing(bench: Any) -> None:
    """The same, on a GPU that fails at every launch."""
    from emulated_cuda import settings

    prepare_emulated(bench)
    settings().emulated_fail(b"cuLaunchKernel", 719)
