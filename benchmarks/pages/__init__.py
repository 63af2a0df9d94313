"""Tables and plots, and the pages of docs/ that they go into."""
