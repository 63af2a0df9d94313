"""Passes for CPUs: nested parallel loops, sums of a block, code shared between functions."""
