"""The three parts of a forest, with the fields and invariants of each."""
