"""The short way for batches on one thread, where what a call costs would exceed the walks.

takes: rows as users pass them, Functions; gives: margins, values, probabilities or classes, or None
for the long way.

    float32, float64 in C order --> a builtin function reads them in place --> result
    other arrays of numbers     --> copied to a buffer that stays --> compiled function
                                --> buffers that stay --> copied to the result
"""
