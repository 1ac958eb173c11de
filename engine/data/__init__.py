"""Tokens for training: from files of any kind to the micro-batches of a step (paper 3.4).

A source (`source.py`) is read as documents (`documents.py`), tokenised once into memory-mapped
files (`tokens.py`), put in an order that is a pure function of seed and position (`order.py`) and
handed out by step (`loader.py`), by one process per node where wanted (`node_loader.py`).
Everything up to the loader works without torch. May import spec, events, units, log and errors.
"""
