"""Triage of foreign logs in two cuts: distinct templates first, then one table of rules."""
