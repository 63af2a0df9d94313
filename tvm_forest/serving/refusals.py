"""Why a request is refused, with its HTTP status.

takes: nothing; gives: Refused.
"""

from __future__ import annotations

from ..errors import ForestError


class Refused(ForestError):
    """A request that gets no predictions.

    Attributes:
        status: of the answer, see docs/serving.md.
    """

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status
