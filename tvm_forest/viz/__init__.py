"""Draws a tree, its tiles and bit planes, layouts in memory, nests, and orders of walks.

takes: a model, a Schedule, rows; gives: Picture, as text and as SVG; the bytes of each buffer.

Drawings are made by matplotlib, which is imported with the first one. Each layout describes its own
buffers (`Layout.describe`), so the code here names no layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import frontends
from ..errors import InputError
from ..forest import Array, Forest
from ..forest.hits import count_node_hits
from ..forest.linear_leaves import read_linear_fields
from ..forest.profile import Profile
from ..forest.reference import cast_rows, goes_left, walk_trees
from ..forest.rewrites.canonical_form import canonicalize
from ..forest.rewrites.ordering import take_trees
from ..layouts.laying_out import Packed, pack
from ..runtime.results import check_forest
from ..schedule_prims import Schedule
from ..schedule_prims.fitting import check_fit
from .nests import nest
from .orders import order
from .picture import LETTER, LINE, SIZE, Picture, draw_squares

__all__ = ["Picture", "footprint", "layout", "nest", "order", "planes", "tree"]


class _TreeRow(NamedTuple):
    """A node in a picture of a tree.

    Attributes:
        branch: the line characters before it in the text, which show its ancestors.
        label: its test, or its leaf value.
        note: its tile, or its share of the rows.
        tile: number of its tile, or None.
        level: hops from the root.
        parent: place of its parent in the picture, -1 for the root.
    """

    branch: str
    label: str
    note: str
    tile: int | None
    level: int
    parent: int


def tree(
    model: Any, tree: int = 0, profile: Profile | None = None, depth: int | None = None
) -> Picture:
    """Show the tests and leaves of a tree, and its tiles if it has been tiled.

    Rows for which a test holds go to the first child, drawn on the left. Tests and tiles bear the
    numbers of nodes within the tree, leaves those that `Predictor.apply` returns.

    Args:
        model: see `load`; a Forest of `tvm_forest.rewrite` to see tiles and padding.
        tree: place of the tree in the model, from 0.
        profile: rows at each leaf, for a model as it was loaded; a Forest may carry it already.
        depth: levels of tests that are shown; None for all.

    Raises:
        InputError: there is no such tree, or the profile is of another model.
        ModelFormatError, UnsupportedModel: see `load`.
    """
    forest = _load_forest(model, profile)
    _check_tree("tree", tree, forest.n_trees)
    one = take_trees(forest, np.array([tree]))
    nodes = list(_list_rows(one, one.n_nodes if depth is None else depth))
    leaves = int(one.is_leaf.sum())
    title = f"tree {tree} of {forest.n_trees}; tests: {one.n_nodes - leaves}, leaves: {leaves}"
    title += f", most hops: {one.depths[0]}{_tiles_text(one)}"
    width = max(len(node.branch + node.label) for node in nodes)
    lines = (f"{x.branch + x.label:{width}}   {x.note}".rstrip() for x in nodes)
    return Picture("\n".join([title, *lines]), lambda figure: _draw_tree(figure, title, nodes))


def _list_rows(one: Forest, depth: int) -> Iterator[_TreeRow]:
    """Yield a tree's nodes, parents first and left before right, down to `depth` tests deep."""
    rows = None if one.hits is None else count_node_hits(one)
    stack, place = [(0, "", "", 0, -1)], 0
    while stack:
        at, branch, below, level, parent = stack.pop()
        cut = not one.is_leaf[at] and level >= depth
        label, note, tile = "..." if cut else _node_text(one, at), "", None
        if one.is_leaf[at] or cut:
            note = "" if rows is None else f"({100 * rows[at] / max(1, rows[0]):.0f} %)"
        else:
            stack.append((int(one.right[at]), f"{below}└─ ", f"{below}   ", level + 1, place))
            stack.append((int(one.left[at]), f"{below}├─ ", f"{below}│  ", level + 1, place))
            tile = None if one.tile is None else int(one.tile[at])
            note = "" if tile is None else f"tile {tile}"
        yield _TreeRow(branch, label, note, tile, level, parent)
        place += 1


def _node_text(one: Forest, at: int) -> str:
    if one.is_leaf[at]:
        return f"leaf {one.node_id[at]}: {_leaf_text(one, at)}"
    name = _feature_name(one, int(one.feature[at]))
    test = f"{one.comparison} {_to_text(one.threshold[at])}"
    if at in one.categories:
        rule = one.category_rule
        side = "in" if rule is not None and rule.members_go == "left" else "not in"
        test = f"{side} {{{', '.join(map(str, one.categories[at]))}}}"
    return f"[{at}] {name} {test}{' or missing' if one.default_left[at] else ''}"


def _leaf_text(one: Forest, leaf: int) -> str:
    """Return the value of a leaf as text, for a linear leaf a sum."""
    if not one.is_linear:
        return _to_text(one.leaf_value[leaf])
    const, terms, features, coefficients = read_linear_fields(one)
    each = slice(*terms[leaf])
    pairs = zip(coefficients[each], features[each], strict=True)
    sums = (f"{_to_text(factor)} {_feature_name(one, int(feature))}" for factor, feature in pairs)
    return " + ".join([_to_text(const[leaf]), *sums])


def _feature_name(one: Forest, feature: int) -> str:
    name = f"f{feature}" if one.feature_names is None else one.feature_names[feature]
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _draw_tree(figure: Any, title: str, nodes: list[_TreeRow]) -> None:
    """Draw a tree; a node takes the width of its text, or of its two children if that is larger."""
    from matplotlib import colormaps

    texts = [f"{node.label}\n{node.note}".rstrip() for node in nodes]
    own = [max(map(len, text.splitlines())) + 3.0 for text in texts]
    x, y = np.zeros(len(nodes)), np.array([-node.level for node in nodes])
    for at in reversed(range(1, len(nodes))):
        x[nodes[at].parent] += max(own[at], x[at])
    wide = np.maximum(own, x)  # until here, x is what the children need
    begin = (wide - x) / 2  # of the strip of the first child, from that of the node
    x = wide / 2
    for at in range(1, len(nodes)):
        parent = nodes[at].parent
        edge = x[parent] - wide[parent] / 2 + begin[parent]
        x[at] = edge + wide[at] / 2
        begin[parent] += wide[at]
    figure.set_size_inches(wide[0] * LETTER, 4 * LINE * (1 - y.min()))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, wide[0]), ylim=(y.min() - 0.5, 0.5))
    axes.axis("off")
    axes.set_title(title, fontsize=SIZE)
    tiles = dict.fromkeys(node.tile for node in nodes)
    colour = {tile: colormaps["Set3"](k % 12) for k, tile in enumerate(tiles)} | {None: "white"}
    for at, node in enumerate(nodes):
        if at:
            axes.plot(x[[node.parent, at]], y[[node.parent, at]], color="0.6", zorder=1)
        box = {"boxstyle": "round", "facecolor": colour[node.tile], "edgecolor": "0.6"}
        axes.text(x[at], y[at], texts[at], bbox=box, ha="center", va="center")


def planes(model: Any, rows: Array, tree: int = 0) -> Picture:
    """Show the outcome of each test of a tree for each row, and which rows reach each leaf.

    The outcomes of one test are a bit plane: a bit for each row, the first one on the left.

    Args:
        model: see `load`.
        rows: (R, F), numbers; up to 64 rows are readable.
        tree: place of the tree in the model, from 0.

    Raises:
        InputError: there is no such tree.
        ModelFormatError, UnsupportedModel: see `load`.
    """
    forest = _load_forest(model, None)
    _check_tree("tree", tree, forest.n_trees)
    one = take_trees(forest, np.array([tree]))
    cast = cast_rows(one, rows)
    ends = walk_trees(one, cast)[:, 0]
    order = sorted(range(one.n_nodes), key=lambda at: bool(one.is_leaf[at]))
    bits = [
        ends == at
        if one.is_leaf[at]
        else goes_left(one, cast[:, one.feature[at]], np.full(len(cast), at))
        for at in order
    ]
    labels = [_node_text(one, at) for at in order]
    width = max(map(len, labels))
    lines = [f"bit planes of tree {tree} of {forest.n_trees}; rows: {len(cast)}"]
    for label, plane in zip(labels, bits, strict=True):
        lines.append(f"{label:{width}}   {''.join(map(str, plane.astype(int)))}")
    kinds = [2 if one.is_leaf[at] else 1 for at in order]
    return Picture("\n".join(lines), lambda figure: _draw_planes(figure, labels, bits, kinds))


def _draw_planes(figure: Any, labels: list[str], bits: list[Array], kinds: list[int]) -> None:
    """Draw a square for each bit: planes of tests in blue, rows that reach a leaf in green."""
    cells = np.array(bits) * np.array(kinds)[:, None]
    wide = max(1, cells.shape[1])
    figure.set_size_inches(1.2 * LINE * wide, 1.2 * LINE * len(labels))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, wide), ylim=(len(labels), 0))
    axes.set_facecolor("#f4f4f4")
    for kind, colour in ((1, "#4f8fca"), (2, "#5aa35a")):
        draw_squares(axes, np.argwhere(cells == kind), colour)
    axes.vlines(range(wide + 1), 0, len(labels), "white", linewidth=1)
    axes.hlines(range(len(labels) + 1), 0, wide, "white", linewidth=1)
    axes.set_yticks(np.arange(len(labels)) + 0.5, labels)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def layout(
    model: Any,
    schedule: Schedule,
    tree: int | None = None,
    profile: Profile | None = None,
    most: int = 16,
) -> Picture:
    """Show the buffers that a walk to a leaf value reads, in the layout of a schedule.

    If leaves are linear or hold vectors, the layout's leaf values are indices into the buffers
    "linear" or "leaf_vectors".

    Args:
        model: see `load`.
        schedule: made for this model.
        tree: lay out this tree by itself, counted after the rewrites; None for all trees.
        profile: see `build`.
        most: largest number of entries of a buffer to show, from the first one on.

    Raises:
        InputError: there is no such tree, or the profile is of another model.
        ModelFormatError: see `load`.
        ScheduleError, BuildError, UnsupportedModel: see `build`.
    """
    packed = _pack_model(model, schedule, profile, tree)
    sizes, described = _count_bytes(packed), packed.layout.describe(packed.arrays)
    who = f"trees: {packed.forest.n_trees}" if tree is None else f"tree {tree} by itself"
    who += f", bytes: {sum(sizes.values())}{_tiles_text(packed.forest)}"
    lines = [f"layout {schedule.layout}; {who}"]
    for name in sizes:
        lines += _buffer_lines(name, packed.arrays[name], described.get(name), most)
    text = "\n".join(lines)
    fixed = text.replace(" ", "\N{NO-BREAK SPACE}")  # SVG shows several spaces as one
    return Picture(text, lambda figure: figure.text(0, 1, fixed, va="top"))


def footprint(model: Any, schedule: Schedule, profile: Profile | None = None) -> dict[str, int]:
    """Return the bytes of each buffer, by name, that a walk to a leaf value reads; see `layout`."""
    return _count_bytes(_pack_model(model, schedule, profile))


def _pack_model(
    model: Any, sch: Schedule, profile: Profile | None, tree: int | None = None
) -> Packed:
    forest = canonicalize(_load_forest(model, profile))
    if tree is not None:
        _check_tree("layout", tree, forest.n_trees)
    check_forest(forest)
    check_fit("layout", forest, sch)
    return pack(forest, sch, tree=tree)


def _count_bytes(packed: Packed) -> dict[str, int]:
    return {name: array.nbytes for name, array in packed.read_by("predict").items()}


def _buffer_lines(
    name: str, array: Array, columns: dict[str, Array] | None, most: int
) -> Iterator[str]:
    """Yield the lines that show a buffer: a table, or a single line if it is a plain list.

    Args:
        name: the buffer's name.
        array: the buffer.
        columns: the columns of the table by name; None if the layout does not describe them.
        most: number of rows, or numbers of a plain list, after which the rest is left out.
    """
    yield f"\n{name}: {array.dtype} {array.shape}, {array.nbytes} bytes"
    if columns is None and array.ndim == 1:
        yield f"  {'  '.join(map(_to_text, array[:most]))}{'  ...' if len(array) > most else ''}"
        return
    if columns is None:
        columns = {str(k): column for k, column in enumerate(array.reshape(len(array), -1).T)}
    count = len(next(iter(columns.values())))
    cells = [["", *map(str, range(min(count, most)))]]
    cells += [[head, *map(_to_text, column[:most])] for head, column in columns.items()]
    widths = [max(map(len, column)) for column in cells]
    for row in zip(*cells, strict=True):
        yield "  ".join(["", *map(str.rjust, row, widths)]).rstrip()
    if count > most:
        yield f"  ... and {count - most} more"


def _load_forest(model: Any, profile: Profile | None) -> Forest:
    forest = frontends.load(model)
    return forest if profile is None else profile.onto(forest)


def _check_tree(where: str, tree: int, count: int) -> None:
    if not isinstance(tree, int | np.integer) or not 0 <= tree < count:
        known = f"the trees are 0 to {count - 1}" if count else "the model has none"
        raise InputError(f"{where}: argument 'tree': there is no tree {tree!r}; {known}")


def _tiles_text(forest: Forest) -> str:
    return f", tiles of {forest.tile_size}" if forest.tile_size > 1 else ""


def _to_text(value: Any) -> str:
    """Return an entry of a table as text, "" if it is masked."""
    if value is np.ma.masked:
        return ""
    if isinstance(value, np.ndarray):
        return " ".join(map(_to_text, value)).strip()
    return f"{value:.6g}" if isinstance(value, np.floating) else str(value)
