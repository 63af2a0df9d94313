"""Codes the values of rows, as ranks or bit planes, for layouts that compare codes."""
