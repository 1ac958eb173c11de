"""Doors for foreign input, all of it hostile: dumps, traces, heartbeats, stacks."""
