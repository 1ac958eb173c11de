"""Scripts for people who work on msctl; not part of the installed package."""
