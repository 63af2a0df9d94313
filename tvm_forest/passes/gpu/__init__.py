"""Turns lowered loops into GPU kernels.

takes: a lowered function; gives: a function of kernels.

`passes.pipeline` has the order of the passes. After them, the target uses `launch_plan` for a GPU,
or `run_threads` to run the kernels on a CPU. `kernel_code` has helpers for all of them.
"""
