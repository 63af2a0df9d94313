"""Searches for schedules, and what is lost where none was made."""
