"""Forest, Target -> Schedule: how to find a good schedule for a model."""
