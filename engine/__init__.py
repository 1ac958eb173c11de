"""The library behind `msctl`: one room per folder, imports go down only (docs/explanation/design.md)."""
