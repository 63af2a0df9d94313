"""A compiled forest, and all that it does: predict, save, load, export, take some rounds."""
