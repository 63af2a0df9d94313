"""Every link of a model, with its parameters."""

from __future__ import annotations

LINKS = [
    *(("softmax", (1, 2)), ("sorted", ()), ("softmax", ())),
    *((link, ()) for link in ("sigmoid", "plain_softmax", "coarse_softmax", "rounded_softmax")),
    *((link, ()) for link in ("exp", "clamp", "step", "signed_square", "logistic", "coarse_exp")),
]
