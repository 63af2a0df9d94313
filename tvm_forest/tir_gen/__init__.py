"""Forest -> IRModule: the canonical functions, their operators, and the code of walks and rows."""
