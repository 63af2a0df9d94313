"""The three parts of a forest, what is said of each field, and what every forest must be."""
