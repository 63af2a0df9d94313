"""The runtime for compiled code, without TVM.

takes: Forest, layouts, stored machine code; gives: names and dtypes of results, arrays of leaves,
libraries. Of TVM's packages it needs only the small apache-tvm-ffi, which calls functions.
"""

from typing import Any, TypeAlias

Library: TypeAlias = Any
"""A TVM executable, a LinkedLibrary or a KernelLibrary: returns functions by name, which take the
rows, arrays of the model, and arrays for results."""
