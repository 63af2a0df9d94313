"""Rewrites of a Forest that keep every prediction."""
