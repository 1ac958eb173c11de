"""The transformer: serial or parallel block, windowed attention (paper 3.1).

It knows no parallelism.

Imports `ops`, `device`, `spec`, `errors`. What a layout does to a model is in
engine/parallel/apply.py.
"""
