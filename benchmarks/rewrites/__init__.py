"""Schedules, layouts and tiles of a model beside each other, and what rewrites could save."""
