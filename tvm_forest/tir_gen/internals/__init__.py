"""TVM's undocumented internals on which this package depends: names, texts, memory formats.

takes: nothing; gives: constants with these names, and the table of all internals.
"""
