"""Reads the nest of loops from scheduled functions, including those that users have scheduled."""
