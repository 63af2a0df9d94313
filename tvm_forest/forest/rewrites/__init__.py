"""Rewrites of a Forest to other nodes, another order, or parts and unions of models.

Predictions stay the same, unless rounds are left out, or sorted trees are added in another order.
"""
