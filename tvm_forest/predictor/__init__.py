"""The compiled forest: predicts, saves, loads, exports, and selects rounds."""
