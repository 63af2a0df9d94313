"""Walks up to 512 rows through a tree at once, by selections (`test ? a : b`) of bit planes.

takes: leaf loops whose rows are bit planes; gives: their code.

    answer 0 = plane[test 0]
    answer 1 = answer 0 ? plane[test 1] : plane[test 2]
    answer 2 = answer 0 ? (answer 1 ? plane[test 3] : plane[test 4]) : (answer 1 ? ...)

Answer k of a row is the outcome of the test that the row meets on level k; bit r of a plane or an
answer belongs to row r. Every line is one expression on vectors of words, which LLVM keeps in
registers; answers are stored in variables, since every later line uses them. Each depth of trees
has its own code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tvm import tirx

from ...layouts.bitsliced import BY_LEVELS, LISTED
from ...layouts.row_codes.planes import ROWS_IN_WORD
from ...schedule_prims.nest import Loop
from ...schedule_prims.walks import WalkForm
from ...system.values import dataclass
from .. import ops
from ..bit_matrices import join_planes
from ..builder import Builder
from ..ir import at_iteration, i64, lanes, mentions, spread
from .leaf_tables import LeafLookUp
from .vectors import Vectors
from .walker import MAX_CLASS_LANES, BlockWalker

if TYPE_CHECKING:
    from ...layouts.bitsliced import BitTree


TREES_ABREAST = 4
"""Number of oblivious trees whose leaves are summed in registers before sums are stored."""

CONSTANTS = 2
"""Number of constant planes, of zeros and of ones, after the planes of tests and before those that
selections write."""

NUMBER_BITS = 8
"""Number of bits of a leaf number that are assembled at once."""


@dataclass(frozen=True)
class BitWalker(BlockWalker):
    """Walks 64 to 512 rows, as bits of words, through a tree together."""

    how: ClassVar[str] = "bits"

    @classmethod
    def computed_rows(cls, extent: Any, count: int) -> Any | None:
        """Return `count`, since the walk computes all rows that the planes have bits for."""
        return i64(count)

    def lower_trees(self, trees: tirx.For, fact: Loop) -> tirx.Stmt | None:
        """Return code that sums the leaves of several oblivious trees in registers.

        None if a tree may not be oblivious, or if the trees do not add to the same sums of a row.
        """
        layout: Any = self.layout
        if layout.depths or layout.lists or not _is_sum(trees.body.body, trees.loop_var):
            return None
        code = Builder()
        for width, begin, count in code.groups(trees.extent.astype("int64"), TREES_ABREAST):
            with code.repeat("some", count) as some:
                first = trees.min + begin + some * width
                self._emit(code, [at_iteration(trees, first + k) for k in range(width)], fact)
        return code.finish()

    def lower(self, loop: tirx.For, fact: Loop, form: WalkForm) -> tirx.Stmt:
        """Return the walk of all rows through one tree, and the stores that use their leaves."""
        code = Builder()
        self._emit(code, [loop], fact)
        return code.finish()

    def _emit(self, code: Builder, loops: list[Any], fact: Loop) -> None:
        """Walk all rows through some trees, then store or add their leaves, group by group.

        The rows of a group are those whose leaves are looked up at once, see `LeafLookUp.rows`.

        Args:
            code: where statements go.
            loops: a leaf loop for each tree.
            fact: facts of the schedule about these loops.
        """
        calls: list[Any] = [ops.find_walk(at_iteration(loop, loop.min)) for loop in loops]
        assert self.comparer.vectors is not None, "checked by CodeRows"
        walks, count, loop = list[tuple[LeafLookUp, Any]](), fact.count or 0, loops[0]
        for call, tree in zip(calls, self.open_trees(code, calls), strict=True):
            words = count // ROWS_IN_WORD
            row, vectors = call.args[0], self.comparer.vectors
            walk = BitWalk.begin(code, tree, row, words, vectors, row.source in self.shared)
            numbers, bits = walk.numbers()
            is_id = ops.is_call(call, ops.WALK_ID)
            walks.append((LeafLookUp(walk.vectors, tree, is_id, bits), numbers))
        full = isinstance(loop.extent, tirx.IntImm) and loop.extent.value == count
        full = full and isinstance(loop.body, tirx.BufferStore)
        rows = walks[0][0].rows
        with code.repeat("group", tirx.ceildiv(loop.extent, i64(rows))) as group:
            found = (table.look_up(numbers, group) for table, numbers in walks)
            leaves = [code.hold("leaf", x).source for x in found]
            if len(loops) == 1:
                self.store_rows(code, loop, group * rows, rows, full, leaves[0])
            else:
                self._add_rows(code, loops, group * rows, rows, full, leaves)

    def _add_rows(
        self,
        code: Builder,
        loops: list[Any],
        first: Any,
        count: int,
        full: bool,
        leaves: list[Any],
    ) -> None:
        """Add the leaves of several trees to the sums of a group of rows, see `store_rows`.

        The lanes of a vector are the classes of a row, or rows if there is one class.
        """
        some = tirx.min(loops[0].extent - first, i64(count))

        def end(k: int, row: Any) -> tuple[Any, Any]:
            return at_iteration(loops[k], loops[k].min + first + row), leaves[k][row]

        trees = range(len(loops))
        if isinstance(loops[0].body, tirx.BufferStore):
            self._add_lanes(code, count, None if full else some, [partial(end, k) for k in trees])
            return
        with code.repeat("row", some) as row:
            ends = [partial(_at_class, *end(k, row)) for k in trees]
            self._add_lanes(code, int(loops[0].body.extent), None, ends)

    def _add_lanes(self, code: Builder, count: int, some: Any, ends: list[Any]) -> None:
        """Emit additions to sums that are kept in registers until all trees are added.

        Args:
            code: where statements go.
            count: number of lanes, one for each sum.
            some: number of lanes in use; None for all.
            ends: for each tree, a function of a lane that returns the lane's store and its leaf.
        """

        def each() -> Any:
            return code.lanes("lane", count) if some is None else code.repeat("lane", some)

        store: Any = ends[0](i64(0))[0]
        sums = code.buffer("sums", (i64(count),), str(store.buffer.dtype))
        if some is not None:
            with code.lanes("lane", count) as lane:
                code.store(sums, tirx.const(0, sums.dtype), [lane])
        with each() as lane:
            store, _ = ends[0](lane)
            element = store.buffer[list(store.indices)]
            code.store(sums, ops.begin_kept(element, store.value), [lane])
        for end in ends:
            with code.lanes("lane", count) as lane:
                store, leaf = end(lane)
                value = ops.add_to_kept(sums[lane], store.value)
                self.add_end(code, tirx.BufferStore(sums, value, [lane]), leaf)
        with each() as lane:
            store, _ = ends[0](lane)
            at = list(store.indices)
            code.store(store.buffer, ops.end_kept(store.buffer[at], sums[lane], store.value), at)


def _at_class(classes: tirx.For, leaf: Any, number: Any) -> tuple[Any, Any]:
    """Return the body of a loop over classes for class `number`, and the leaf."""
    return at_iteration(classes, number), leaf


def _is_sum(body: tirx.Stmt, tree: Any) -> bool:
    """Return whether all trees add to the same sum of a row, or to the same few class sums."""
    if isinstance(body, tirx.For):
        if not (isinstance(body.extent, tirx.IntImm) and body.extent.value <= MAX_CLASS_LANES):
            return False
        body = body.body
    is_sum = isinstance(body, tirx.BufferStore) and ops.is_call(body.value, ops.REDUCE)
    return is_sum and not mentions(body.indices, {tree})


@dataclass(frozen=True)
class BitWalk:
    """Emits the walk of a block of rows through a tree.

    Attributes:
        code: where statements go.
        tree: access to the tree.
        near: load of the word of plane 0 with the first rows.
        words: number of words that hold the rows' bits, 1 to 8.
        vectors: operations on vectors.
        shared: whether other threads read the planes at the same time.
    """

    code: Builder
    tree: BitTree
    near: Any
    words: int
    vectors: Vectors
    shared: bool = False

    @classmethod
    def begin(
        cls,
        code: Builder,
        tree: BitTree,
        row: Any,
        words: int,
        vectors: Vectors,
        shared: bool = False,
    ) -> BitWalk:
        """Begin a walk; `row` is a load from the planes that identifies the first row."""
        word = code.hold("word", row.indices[1])
        return cls(code, tree, row.source[i64(0), word], words, vectors, shared)

    def numbers(self) -> tuple[Any, int]:
        """Emit the walk; return a buffer with the leaf numbers, and the bits of one: 8 or 16."""
        firsts = range(0, self.tree.layout.bits, NUMBER_BITS)
        if self.words == 1:
            joined = [self.code.buffer("joined", (i64(NUMBER_BITS),), "uint64") for _ in firsts]
            # each form joins its own bits: joined after all branches, they would go through memory
            self._emit_ways(lambda form: self._join_words(self._walk(form, self._bits()), joined))
        else:
            bits = self._bits()
            self._emit_ways(lambda form: self._walk(form, bits))
            joined = [self._join_planes(bits, first) for first in firsts]
        if len(joined) == 1:
            return joined[0], NUMBER_BITS
        pairs = self.code.buffer("numbers", (i64(2 * NUMBER_BITS * self.words),), "uint64")
        for word in range(self.words):
            at = lanes(i64(NUMBER_BITS * word), NUMBER_BITS)
            parts = (self.vectors.cast(x[at], f"uint8x{ROWS_IN_WORD}") for x in joined)
            both = lanes(i64(2 * NUMBER_BITS * word), 2 * NUMBER_BITS)
            self.code.store(pairs, self.vectors.interleave(*parts), [both])
        return pairs, 2 * NUMBER_BITS

    def _bits(self) -> Any:
        """Declare a buffer (bits, words) for the bits of leaf numbers."""
        shape = (i64(self.tree.layout.bits), i64(self.words))
        return self.code.buffer("bits", shape, "uint64")

    def _join_words(self, bits: Any, joined: list[Any]) -> None:
        """Assemble the bits of leaf numbers to 8-bit numbers, and store these.

        The lowest 8 bits of each leaf number go to the first of the buffers `joined`, the next 8 to
        the second.
        """
        count, all_of_them = int(bits.shape[0]), lanes(i64(0), NUMBER_BITS)
        for part, into in enumerate(joined):
            first = part * NUMBER_BITS
            if self.vectors.permutes_bytes:
                last = min(count, first + NUMBER_BITS)
                words = [bits[i64(k), i64(0)] for k in range(first, last)]
                self.code.store(into, self.vectors.join_bits(words), [all_of_them])
            else:
                self.code.store(into, self._join_planes(bits, first)[all_of_them], [all_of_them])

    def _join_planes(self, bits: Any, first: int) -> Any:
        """Assemble 8-bit numbers from the planes `first` to `first + 7`; return their buffer."""
        count = int(bits.shape[0])

        def row(k: int, word: int, width: int) -> Any:
            if first + k < count:
                return bits[i64(first + k), lanes(i64(word), width)]
            return spread(tirx.const(0, "uint64"), width)

        return join_planes(self.code, self.vectors, self.words, row)

    def _emit_ways(self, emit: Callable[[int], object]) -> None:
        """Emit code for each form of tree; at run time a tree takes the branch of its form."""
        layout, bodies = self.tree.layout, list[tirx.Stmt]()
        forms = [*layout.depths, *[LISTED] * layout.lists, *[BY_LEVELS] * bool(layout.levels)]
        for form in forms:
            outer, self.code.statements = self.code.statements, []
            emit(form)
            bodies.append(self.code.finish())
            self.code.statements = outer
        whole = bodies.pop()
        for form, body in reversed(list(zip(forms, bodies, strict=False))):
            here = tirx.EQ(self.tree.depth, tirx.IntImm("int32", form))
            whole = tirx.IfThenElse(here, body, whole)
        self.code.add(whole)

    def _walk(self, form: int, bits: Any) -> Any:
        """Emit the walk through trees of one form: a depth, a list of selections, or oblivious."""
        others = {LISTED: self._walk_list, BY_LEVELS: self._walk_levels}
        others.get(form, self._tournament)(bits, form)
        return bits

    def _tournament(self, bits: Any, depth: int) -> None:
        """Walk a complete tree: the answers of its levels are the bits of the leaf number."""
        answers: list[Any] = []
        for level in range(depth):
            answers.append(self.code.hold("answer", self._select(answers, level, 0, 0)))
        self._store(bits, answers[::-1])

    def _walk_levels(self, bits: Any, form: int) -> None:
        """Walk an oblivious tree: the planes of its tests are the bits of the leaf numbers."""
        levels = range(self.tree.layout.levels)
        self._store(bits, [self._plane(self.tree.plane(bit)) for bit in levels])

    def _store(self, bits: Any, answers: list[Any]) -> None:
        """Store the bits of leaf numbers, lowest first; missing high bits are 0."""
        zeros = spread(tirx.const(0, "uint64"), self.words)
        for bit in range(self.tree.layout.bits):
            answer = answers[bit] if bit < len(answers) else zeros
            self.code.store(bits, answer, [i64(bit), lanes(i64(0), self.words)])

    def _walk_list(self, bits: Any, form: int) -> None:
        """Walk a tree that is a list of selections, whose results go behind the planes of tests.

        If other threads read these planes at the same time, the results go to a private buffer.
        """
        first, own = self.tree.layout.code.tests + CONSTANTS, None
        if self.shared:
            size = (i64(self.tree.layout.code.spare - CONSTANTS), i64(self.words))
            own = self.code.buffer("spare", size, "uint64")

        def place(plane: Any) -> list[Any]:
            if own is None:
                return [plane, lanes(self.near.indices[1], self.words)]
            return [plane - first, lanes(i64(0), self.words)]

        def read(plane: Any) -> Any:
            if own is None:
                return self._plane(plane)
            return tirx.if_then_else(plane < first, self._plane(plane), own[place(plane)])

        with self.code.repeat("step", self.tree.count) as step:
            word = self.code.hold("selection", self.tree.selection(step))
            mask = tirx.const(0xFFFF, "uint64")
            shifts = [tirx.const(16 * k, "uint64") for k in range(4)]
            fields = [tirx.shift_right(word, shift) & mask for shift in shifts]
            test, true, false, into = (field.astype("int64") for field in fields)
            test = self.code.hold("test", self._plane(test))
            value = (test & read(true)) | (tirx.bitwise_not(test) & read(false))
            self.code.store(self.near.source if own is None else own, value, place(into))
        for bit in range(self.tree.layout.bits):
            found = read(i64(first + bit))
            self.code.store(bits, found, [i64(bit), lanes(i64(0), self.words)])

    def _select(self, answers: list[Any], level: int, at: int, node: int) -> Any:
        """Return each row's answer on a level, for rows at node number `node` of level `at`."""
        if at == level:
            return self._plane(self.tree.plane((1 << level) - 1 + node))
        left, right = (self._select(answers, level, at + 1, 2 * node + k) for k in (0, 1))
        return self.vectors.select(answers[at], left, right)

    def _plane(self, plane: Any) -> Any:
        first, word = self.near.indices
        return self.near.source[first + plane, lanes(word, self.words)]
