"""GPU support for Relax modules: kernels that TVM's passes cannot change, and constants on GPUs."""
