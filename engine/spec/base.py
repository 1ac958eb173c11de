"""The base of every noun, and the short names of constrained field types.

A noun is frozen, keyword-only and refuses unknown keys, so that one declaration decodes TOML and
JSON, checks it and yields the JSON Schema that editors use.
"""

from typing import Annotated

import msgspec
from msgspec import Meta


class Noun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that is passed between rooms; compared and hashed by its fields."""


Count = Annotated[int, Meta(ge=1)]
"""A whole number of at least one."""

Size = Annotated[int, Meta(ge=0)]
"""A whole number of at least zero; zero often means off, or derived from other fields."""

Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
"""A share, 0..1."""

Positive = Annotated[float, Meta(gt=0.0)]
"""A quantity above zero."""

NonNegative = Annotated[float, Meta(ge=0.0)]
"""A quantity of at least zero."""


def doc(text: str) -> Meta:
    """Describe a recipe key: shown in the JSON Schema and in `docs/reference/recipe.md`."""
    return Meta(description=text)
