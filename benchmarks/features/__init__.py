"""Features of the package: equal to what others compute first, and then timed beside them."""
