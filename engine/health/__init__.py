"""Is this node fit to train? Checks of a node, a pair and a group (paper 4.3).

A check is a small function over a probe (what is read from the machine); `suite.py` lists them all,
`runner.py` runs them under deadlines. May import `comm` and everything below; torch is imported
only by `gpu.py` and `collective.py`.
"""
