"""Write the files that are made from code: the recipe's JSON Schema and reference pages.

    python -m tools.generate            write what has changed
    python -m tools.generate --check    only say what is stale; exit 1 if anything is

A test runs the check, so that none of these files can fall behind the code.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from tools.checks_page import checks_page
from tools.pages import cli_page, events_page, recipe_page
from tools.schema import recipe_schema

ROOT = Path(__file__).resolve().parent.parent

FILES: dict[str, Callable[[], str]] = {
    "recipes/recipe.schema.json": recipe_schema,
    "docs/reference/recipe.md": recipe_page,
    "docs/reference/events.md": events_page,
    "docs/reference/cli.md": cli_page,
    "docs/reference/checks.md": checks_page,
}
"""Generated file -> the function that makes its text."""


def stale() -> dict[str, str]:
    """Files that differ from what the code says, with the text they should have."""
    found = {}
    for name, make in FILES.items():
        path, text = ROOT / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            found[name] = text
    return found


def main() -> int:
    """Write or check."""
    changed = stale()
    for name, text in changed.items():
        print(f"{'stale' if '--check' in sys.argv else 'wrote'}: {name}")
        if "--check" not in sys.argv:
            (ROOT / name).write_text(text, encoding="utf-8")
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
