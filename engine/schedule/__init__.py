"""The order of work in a pipeline, as data (paper 2, 3.2). Imports `events` and below; no torch."""
