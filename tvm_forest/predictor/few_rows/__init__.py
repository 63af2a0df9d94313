"""The short way of batches of few rows, whose calls would else take longer than their walks.

float32, float64 in C's order --builtin function--> what the user gets
other rows --copy--> frame.rows --frame.call--> frame.results --copy--> what the user gets
"""
