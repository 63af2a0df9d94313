"""Searches for a fast schedule of a model on a target."""
