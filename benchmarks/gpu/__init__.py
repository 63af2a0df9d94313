"""Compiled models on a GPU; most of this room runs in the folder that `gpu.folder` makes."""
