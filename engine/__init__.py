"""The library behind `msctl`: a room per folder, imports go down (docs/explanation/design.md)."""
