"""Passes for CPUs: fused parallel loops, sums of a block, code shared between functions."""
