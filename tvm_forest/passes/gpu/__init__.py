"""Turns lowered loops into GPU kernels.

takes: a lowered function; gives: a function of kernels.

`pipeline` has the order of the passes. After them the target continues with `launch_plan` (a GPU)
or `run_threads` (the host's CPU). `kernel_code` has helpers that all of them use.
"""
