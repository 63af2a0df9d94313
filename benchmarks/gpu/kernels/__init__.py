"""What can be read off the machine code of kernels for GPUs, without one."""
