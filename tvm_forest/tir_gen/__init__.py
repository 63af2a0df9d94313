"""Emits the canonical TIR functions of a forest, and the code of walks and row codes."""
