"""The fast path for batches of few rows, for which call overhead would exceed the walks.

takes: rows as users pass them, Functions; gives: margins or values, or None for the slow path.

    float32, float64 in C order --> a builtin function reads them in place --> result
    other arrays of numbers     --> copied to a buffer that stays --> compiled function
                                --> buffers that stay --> copied to the result
"""
