"""The fast path for batches of few rows, for which call overhead would exceed the walks.

float32, float64 in C order --builtin function--> result
other rows --copy--> frame.rows --frame.call--> frame.results --copy--> result
"""
