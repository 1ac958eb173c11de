"""Keeps a run alive (paper 4.1).

The driver side is torch-free; ranks are forked from a warm nursery.
"""
