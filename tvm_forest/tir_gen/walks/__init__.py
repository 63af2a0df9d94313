"""The code of a walk: hop by hop, in vector lanes, by bit planes, by permutes."""
