"""Compresses and decompresses HTTP bodies.

takes: bytes; gives: bytes, compressed or decompressed.
"""

from __future__ import annotations

import re
import zlib

from .refusals import Refused

CODINGS = {b"gzip": 31, b"deflate": 15}
"""HTTP's content encodings, and for each the `wbits` argument of zlib."""

_LEVEL = 1  # higher levels take longer, and shrink predictions little more
_OFFER = re.compile(rb"([\w*-]+)(?:\s*;\s*q=([01](?:\.\d{0,3})?))?")


def unpack(body: bytes, coding: bytes, most: int) -> bytes:
    """Decompress a body; stop after `most` + 1 bytes, by which the caller sees that it is too long.

    Raises:
        Refused: it is damaged or cut short, or other bytes follow.
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
    """Compress the parts of an answer; return the result in parts."""
    machine = zlib.compressobj(_LEVEL, wbits=CODINGS[coding])
    packed = [*map(machine.compress, parts), machine.flush()]
    return [part for part in packed if part]


def choose_coding(accepted: bytes) -> bytes | None:
    """Return the encoding that the header Accept-Encoding prefers; None for no compression."""
    wanted = {name: float(weight or 1) for name, weight in _OFFER.findall(accepted.lower())}
    others = wanted.get(b"*", 0.0)
    best = max(CODINGS, key=lambda coding: wanted.get(coding, others))
    return best if wanted.get(best, others) > 0 else None
