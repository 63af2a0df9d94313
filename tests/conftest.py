from pathlib import Path

import pytest

from shared_models import MODELS


@pytest.fixture
def models() -> Path:
    """The folder of real models and rows; tests that ask for it are skipped without it."""
    if not MODELS.is_dir():
        pytest.skip("real models are not at hand")
    return MODELS
