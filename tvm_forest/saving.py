"""Where pickled predictors of earlier versions look for the function that reads them."""

from .predictor.saving import from_bytes

__all__ = ["from_bytes"]
