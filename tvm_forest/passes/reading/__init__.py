"""Functions that carry their schedule: their blocks, their nest, and those that users wrote."""
