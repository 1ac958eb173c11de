"""Optimizers on shards of flat buffers (paper 3.1). Imports `comm`, `spec`, `errors`."""
