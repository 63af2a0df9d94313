"""Checks whether a compiled model predicts what its training library predicts.

takes: model, Forest, Predictor, rows; gives: Report.
"""

from .compare import verify
from .distances import ulps
from .report import Agreement, Report

__all__ = ["Agreement", "Report", "ulps", "verify"]
