"""Compiles an IRModule for a Target: the differences between devices."""
