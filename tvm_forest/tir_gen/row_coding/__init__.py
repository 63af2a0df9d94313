"""Emits the code that turns rows into ranks or bit planes before they are walked."""
