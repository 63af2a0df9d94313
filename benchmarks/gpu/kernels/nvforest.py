"""A kernel that accesses memory as nvForest's does, to be counted in the same way.

takes: Forest; gives: CUDA text, and arrays.

Written from a reading of nvForest (the Forest Inference Library of RAPIDS, Apache License 2.0), not
copied from it. A block has 256 threads and takes 32 rows at a time, or as many as fit, which it
copies into shared memory as they are. Thread k walks row k % 32 through the trees k / 32,
k / 32 + 8, ..., and adds leaf values to a sum of its own in shared memory. Nodes of 8 bytes stay in
memory of the device, in depth-first order: the child of a false test is the next one, the other
child is an offset away. Then a warp for every row adds up the 8 sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

ROWS, THREADS = 32, 256
SHARED = 227 * 1024

TEXT = """\
extern "C" __global__ void __launch_bounds__({threads}) nvforest_kernel(\
float* __restrict__ out_ptr, int* __restrict__ roots_ptr, float* __restrict__ rows_ptr, \
unsigned long long* __restrict__ nodes_ptr, int64_t n) {{
  __shared__ alignas(64) float sums_ptr[{sums}];
  __shared__ alignas(64) float near_ptr[{near}];
  for (int first = blockIdx.x * {rows}; first < n; first += {rows} * gridDim.x) {{
    int here = n - first < {rows} ? int(n - first) : {rows};
    for (int i = threadIdx.x; i < {sums}; i += {threads}) sums_ptr[i] = 0;
    for (int i = threadIdx.x; i < here * {features}; i += {threads})
      near_ptr[i] = rows_ptr[(int64_t)first * {features} + i];
    __syncthreads();
    for (int task = threadIdx.x; task < {tasks}; task += {threads}) {{
      int row = task % {rows}, tree = task / {rows};
      bool real = task < {rows} * {trees} && row < here;
      row *= real, tree *= real;
      int at = roots_ptr[tree];
      unsigned long long node = nodes_ptr[at];
      while ((node >> 32) & 0xffff) {{
        unsigned low = (unsigned)node, high = (unsigned)(node >> 32);
        float x = near_ptr[row * {features} + ((high >> 16) & 0x1fff)];
        bool far = x < __int_as_float(low);
        if (!far && (high >> 31)) far = isnan(x);
        at += far ? (high & 0xffff) : 1;
        node = nodes_ptr[at];
      }}
      if (real) {{
        int place = (row * {classes} + tree % {classes}) * {groves} + threadIdx.x / {rows};
        sums_ptr[place] = sums_ptr[place] + __int_as_float((unsigned)node);
      }}
      __syncthreads();
    }}
    for (int row = threadIdx.x / 32; row < here; row += {threads} / 32)
      for (int c = 0; c < {classes}; ++c) {{
        float sum = sums_ptr[(row * {classes} + c) * {groves} + threadIdx.x % {groves}];
        for (int by = {groves} / 2; by; by >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, by);
        if (threadIdx.x % 32 == 0) out_ptr[(first + row) * {classes} + c] = sum;
      }}
    __syncthreads();
  }}
}}
"""


class NvForest(NamedTuple):
    """The kernel for one model: its text, the rows of a block, and the arrays that it reads."""

    text: str
    rows: int
    roots: Any
    nodes: Any


def nvforest_kernel(forest: Any) -> NvForest:
    """Write the kernel for a forest with one number a leaf, float32, without categories."""
    order, roots = list[int](), list[int]()
    for tree in range(forest.n_trees):
        roots.append(len(order))
        stack = [int(forest.tree_offset[tree])]
        while stack:
            node = stack.pop()
            order.append(node)
            if not forest.is_leaf[node]:
                base = int(forest.tree_offset[tree])
                stack += [base + int(forest.left[node]), base + int(forest.right[node])]
    place, chosen = np.empty(len(order), np.int64), np.array(order)
    place[chosen] = np.arange(len(order))
    inner = ~forest.is_leaf
    left = np.where(inner, forest.tree_offset[forest.node_tree] + forest.left, 0)
    offset = np.where(inner, place[left] - place, 0)
    number = np.where(inner, forest.threshold, forest.leaf_value[:, 0]).astype(np.float32)
    high = (
        offset | forest.feature.astype(np.int64) << 16 | (inner & forest.default_left) * (1 << 31)
    )
    words = number.view(np.uint32).astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
    rows = ROWS
    while 4 * (rows * forest.n_features + THREADS * forest.n_outputs) > SHARED:
        rows //= 2
    tasks = -(-rows * forest.n_trees // THREADS) * THREADS
    text = TEXT.format(
        threads=THREADS, sums=THREADS * forest.n_outputs, near=rows * forest.n_features,
        rows=rows, groves=THREADS // rows,
        features=forest.n_features, tasks=tasks, trees=forest.n_trees, classes=forest.n_outputs,
    )  # fmt: skip
    return NvForest(text, rows, np.array(roots, np.int32), words[chosen])
