"""Assembles the rooms below and runs steps (paper 6). Start with trainer.py."""
