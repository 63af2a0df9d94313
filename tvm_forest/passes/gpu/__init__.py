"""From lowered loops to the kernels of a GPU.

takes: a lowered function; gives: a function of kernels.

`pipeline` has the passes in their order. Behind them the target goes on with `launch_plan` (a GPU)
or `run_threads` (the CPU at hand). `kernel_code` has the words that all of them use.
"""
