"""Importing this lets a program find what the tests share, in tests/helpers."""

import sys
from pathlib import Path

HELPERS = str(Path(__file__).resolve().parents[1] / "tests" / "helpers")
if HELPERS not in sys.path:
    sys.path.insert(1, HELPERS)
