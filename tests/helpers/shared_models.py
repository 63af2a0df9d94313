"""The real models and rows, which lie beside the checkout and are no part of the project."""

from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"


def shared_model(name: str) -> Path:
    """Return the path of a model or row file, or skip the test that asks for it."""
    path = MODELS / name
    if not path.exists():
        pytest.skip("real models are not at hand")
    return path
