"""The code that turns rows into codes or bit planes before they are walked."""
