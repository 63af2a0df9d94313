"""Predictors that change while they predict: to code that comes later, and to other models."""
