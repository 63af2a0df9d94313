"""Reads functions that carry their schedule: blocks, nest, and users' own schedules."""
