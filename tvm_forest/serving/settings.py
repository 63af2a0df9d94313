"""The settings of a server: limits, permissions, and the token.

takes: options; gives: Settings.
"""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..system.values import dataclass, fields

MEGABYTE = 1 << 20

MAX_NUMBER = 10**9
"""Largest value of a limit; as seconds, thirty years."""

_COUNTS = ("max_batch", "max_queue")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a server. Numbers in parentheses are the HTTP statuses of refusals.

    Attributes:
        max_batch: most rows of requests that are joined, 1 or more.
        max_delay_ms: most milliseconds that a request waits for others while nothing is predicted.
            The event loop rounds them up to whole ones.
        max_body_mb: most megabytes of a request (413).
        max_answer_mb: most megabytes that an answer could have (413).
        max_queue: most requests for predictions that the server handles at once (503).
        max_queue_mb: most megabytes of the bodies and the answers of all requests together (503).
        timeout_s: most seconds for the head of a request to arrive, and for its body (408), and for
            a client to read its answer.
        watch_s: seconds between two checks whether files of models have changed; 0 for no checks.
        allow_load: whether clients may have models reloaded from their files, and unloaded.
        access_log: whether each answer is logged by the logger `tvm_forest.access`.
        token: the secret that clients must send (401); None for no secret.

    Raises:
        InputError: a number is out of range, or the token cannot be sent in a header.
    """

    max_batch: int = 4096
    max_delay_ms: float = 0.0
    max_body_mb: float = 16.0
    max_answer_mb: float = 64.0
    max_queue: int = 1000
    max_queue_mb: float = 512.0
    timeout_s: float = 30.0
    watch_s: float = 0.0
    allow_load: bool = False
    access_log: bool = False
    token: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in ("token", "allow_load", "access_log"):
                _check_number(field.name, getattr(self, field.name))
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise InputError("serve: argument 'token': it may hold printable letters of ASCII only")
        if self.token is not None and (not self.token or " " in self.token):
            raise InputError("serve: argument 'token': it is empty or holds a space")

    @property
    def max_body(self) -> int:
        """`max_body_mb` in bytes."""
        return int(self.max_body_mb * MEGABYTE)

    @property
    def max_answer(self) -> int:
        """`max_answer_mb` in bytes."""
        return int(self.max_answer_mb * MEGABYTE)

    @property
    def max_held(self) -> int:
        """`max_queue_mb` in bytes."""
        return int(self.max_queue_mb * MEGABYTE)


def _check_number(name: str, value: Any) -> None:
    """Raise InputError unless a limit is a number in its range; NaN is refused."""
    if name in _COUNTS:
        is_number, least = type(value) is int and value >= 1, "a whole number from 1 on"
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_zero_too = name in ("max_delay_ms", "watch_s")
        is_number = is_number and (value > 0 or (value == 0 and is_zero_too))
        least = "a number from 0 on" if is_zero_too else "a number over 0"
    if not (is_number and value <= MAX_NUMBER):
        raise InputError(
            f"serve: argument '{name}': {value!r}; give {least}, at most {MAX_NUMBER:,}"
        )
