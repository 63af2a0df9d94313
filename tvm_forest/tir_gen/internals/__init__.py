"""TVM's undocumented internals on which this package depends: names, texts, memory.

takes: nothing; gives: names, functions, and the table of all of them.
"""
