"""The three base classes of Forest, which declare its fields, and the checks of its invariants."""
