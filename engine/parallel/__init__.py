"""Applies tensor, pipeline and data parallelism to a model (paper 3.2). Start with apply.py.

Imports `model`, `optim`, `ops`, `comm`, `schedule`, `events`, `device`, `spec`, `errors`.
"""
