"""How a server behaves.

takes: numbers; gives: Settings.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..errors import InputError

MEGABYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits of a server.

    Attributes:
        max_batch: most rows of requests that are joined, 1 or more.
        max_delay_ms: most milliseconds that a request waits for others while nothing is predicted.
            The event loop rounds them up to whole ones.
        max_body_mb: most megabytes of a request (413).
        max_queue: most requests for predictions that are in the server at once (503).
        max_queue_mb: most megabytes of the bodies of all of these together (503).
        timeout_s: most seconds that the head and the body of a request may take to come each
            (408), and that a client may take none of an answer.
        token: what clients have to know (401); None for nothing.

    Raises:
        InputError: a number out of range.
    """

    max_batch: int = 4096
    max_delay_ms: float = 0.0
    max_body_mb: float = 16.0
    max_queue: int = 1000
    max_queue_mb: float = 512.0
    timeout_s: float = 30.0
    token: str | None = None

    def __post_init__(self) -> None:
        least = {"max_batch": 1, "max_queue": 1, "max_delay_ms": 0}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "token":
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not (
                value >= least[field.name] if field.name in least else value > 0
            ):
                raise InputError(f"serve: argument '{field.name}': {value!r} is too small")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise InputError("serve: argument 'token': it may hold printable letters of ASCII only")
        if self.token is not None and (not self.token or " " in self.token):
            raise InputError("serve: argument 'token': it is empty or holds a space")

    @property
    def max_body(self) -> int:
        """Most bytes of a body."""
        return int(self.max_body_mb * MEGABYTE)

    @property
    def max_held(self) -> int:
        """Most bytes of all bodies."""
        return int(self.max_queue_mb * MEGABYTE)
