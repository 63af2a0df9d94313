"""Defines the result of `verify`, and its text.

takes: counts of equal rows, largest distances; gives: Agreement, Report, and their text.
"""

from __future__ import annotations

from ..system.values import dataclass


@dataclass(frozen=True)
class Agreement:
    """The agreement of a compiled model with another one that should predict the same.

    Attributes:
        against: "reference walk", or name and version of the training library.
        n_rows: number of rows compared.
        rows_equal: number of rows whose margins are equal to the bit; None without margins.
        margin_ulp, value_ulp: largest differences of margins and values, in units of the last
            place; None if the other model returns none.
        value_bound: the largest `value_ulp` that the link allows.
        labels_equal: number of rows whose labels are equal; None if there are no labels.
        first_row: index of the first row that differs, with the caller's rows first; None if all
            rows agree.
        first_tree: the first tree in which that row reaches another leaf; if there is none, the
            first with another leaf value; None if not known.
        left_out: number of rows that were not compared, and the reason.
    """

    against: str
    n_rows: int
    rows_equal: int | None
    margin_ulp: int | None
    value_ulp: int | None
    value_bound: int
    labels_equal: int | None
    first_row: int | None
    first_tree: int | None
    left_out: tuple[int, str]

    @property
    def ok(self) -> bool:
        """Whether margins and labels are equal, and values within the bound."""
        return self.first_row is None

    def __str__(self) -> str:
        parts = []
        if self.rows_equal is not None:
            parts.append(f"margins equal on {self.rows_equal} of {self.n_rows} rows")
        if self.margin_ulp:
            parts.append(f"at most {self.margin_ulp} ulp apart")
        if self.value_ulp is not None:
            parts.append(f"values within {self.value_ulp} ulp (bound {self.value_bound})")
        if self.labels_equal is not None:
            parts.append(f"labels equal on {self.labels_equal}")
        text = f"{self.against}: {', '.join(parts)}"
        if self.left_out[0]:
            text += f"; {self.left_out[0]} rows left out, for {self.left_out[1]}"
        if self.first_row is None:
            return text
        tree = f"first in tree {self.first_tree}"
        if self.first_tree is None:
            tree = "no tree tells why"
        return f"{text}\n  first differing row: {self.first_row}, {tree}"


@dataclass(frozen=True)
class Report:
    """The result of `verify`; `str` summarises it in a few lines.

    Attributes:
        model: library and objective.
        rows: number of rows by kind: "given", "typical", "hard", "hard, finite".
        refused: number of these rows that the model refuses, and that were left out.
        reference: agreement with the reference walk.
        library: agreement with the training library, or a text that says why it was not compared.
    """

    model: str
    rows: dict[str, int]
    refused: int
    reference: Agreement
    library: Agreement | str

    @property
    def ok(self) -> bool:
        """Whether every comparison that could be made succeeded."""
        return self.reference.ok and (isinstance(self.library, str) or self.library.ok)

    def __str__(self) -> str:
        rows = ", ".join(f"{count} {kind}" for kind, count in self.rows.items())
        refused = f"; {self.refused} left out, for the model refuses them" if self.refused else ""
        library = self.library
        if isinstance(library, str):
            library = f"training library: not compared, {library}"
        verdict = "equal" if self.ok else "DIFFERENT"
        return f"{self.model}: {verdict}\nrows: {rows}{refused}\n{self.reference}\n{library}"
