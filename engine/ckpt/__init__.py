"""Two-stage checkpoints: saved behind training, loaded under any layout (paper 4.4).

Imports `errors`, `units`, `spec`. Torch is imported only by `snapshot` and `restore`; listing,
showing, verifying, resharding, exporting and pruning need numpy alone. Format:
docs/reference/checkpoint-format.md.
"""
