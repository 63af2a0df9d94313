"""The error for requests that are refused, with an HTTP status.

takes: nothing; gives: Refused.
"""

from __future__ import annotations

from ..errors import ForestError


class Refused(ForestError):
    """A request that gets no predictions.

    Attributes:
        status: HTTP status of the answer, see docs/serving.md.
    """

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status
