"""What only modules for GPUs need: kernels that TVM leaves as they are, and where constants lie."""
