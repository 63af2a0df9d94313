"""The three parts of a forest, the meaning of each field, and what every forest must satisfy."""
