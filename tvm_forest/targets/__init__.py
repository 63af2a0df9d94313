"""Compiles a lowered IRModule for a Target: machine code for CPUs, kernels for GPUs."""
