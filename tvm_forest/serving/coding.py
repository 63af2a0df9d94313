"""Bodies of HTTP that are compressed.

takes: bytes; gives: bytes, compressed or as they were.
"""

from __future__ import annotations

import re
import zlib

from .refusals import Refused

CODINGS = {b"gzip": 31, b"deflate": 15}
"""How zlib calls the forms that it reads and writes, by their names in HTTP."""

_LEVEL = 1  # predictions shrink little more at others, which take longer
_OFFER = re.compile(rb"([\w*-]+)(?:\s*;\s*q=([01](?:\.\d{0,3})?))?")


def unpack(body: bytes, coding: bytes, most: int) -> bytes:
    """Return what a body is when it is no longer compressed; at most `most` bytes and one more.

    Raises:
        Refused: it is damaged, or more follows.
    """
    machine = zlib.decompressobj(CODINGS[coding])
    try:
        found = machine.decompress(body, most + 1)
    except zlib.error as error:
        raise Refused(f"the body is not of the form {coding.decode()}: {error}") from None
    if len(found) <= most and (not machine.eof or machine.unused_data):
        raise Refused(f"the body is cut short, or more follows what is {coding.decode()}")
    return found


def pack(parts: list[bytes], coding: bytes) -> list[bytes]:
    """Return an answer compressed, in parts."""
    machine = zlib.compressobj(_LEVEL, wbits=CODINGS[coding])
    packed = [*map(machine.compress, parts), machine.flush()]
    return [part for part in packed if part]


def choose_coding(accepted: bytes) -> bytes | None:
    """Return the encoding that Accept-Encoding prefers; None for none."""
    wanted = {name: float(weight or 1) for name, weight in _OFFER.findall(accepted.lower())}
    others = wanted.get(b"*", 0.0)
    best = max(CODINGS, key=lambda coding: wanted.get(coding, others))
    return best if wanted.get(best, others) > 0 else None
