"""GPU support for Relax modules: protected kernels, and the placement of constants."""
