"""Operators with a reference and a native form (paper 3.3). Imports `device`, `spec`, `errors`."""
