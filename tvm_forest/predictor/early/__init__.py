"""Early stopping for decisions: whether a value is above a threshold, the class, the best rows.

takes: Predictor, rows; gives: exactly the decisions that predictions of the whole model lead to.

Rows walk the trees stretch by stretch, that is some rounds at a time (`stretches.py`). A row stops
as soon as bounds on the remaining trees (`bounds.py`) decide about it (`deciding.py`). If rows
cannot stop, or stopping does not pay, the whole model is used.
"""
