"""Answers that need no prediction to the end: above a threshold, the class, the best rows.

takes: Predictor, rows; gives: what follows from the predictions of the whole model, always.

Rows go through the trees stretch by stretch (`stretches.py`) and stop where bounds of the trees to
come (`bounds.py`) decide (`deciding.py`). Where they cannot stop, or where that does not pay, the
whole model answers.
"""
