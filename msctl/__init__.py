"""The command line of the project: the only place that knows typer and rich."""

__version__ = "0.1.0"
