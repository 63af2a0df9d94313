"""How the values of a row are coded for layouts that compare codes: ranks, bit planes."""
