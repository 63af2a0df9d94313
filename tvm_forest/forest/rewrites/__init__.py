"""Forest -> Forest: rewrites that keep every prediction."""
