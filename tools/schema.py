"""The JSON Schema of a recipe, for editors: msgspec's own, plus what the loader adds to it."""

import json
from typing import Any

import msgspec

from engine.spec.presets import CLUSTERS, MODELS
from engine.spec.recipe import Recipe

_PRESETS = {"ModelSpec": list(MODELS), "ClusterSpec": list(CLUSTERS)}


def recipe_schema() -> str:
    """The schema as text; sections that may start from a preset need no other key then."""
    schema: dict[str, Any] = msgspec.json.schema(Recipe)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "msctl recipe"
    for name, presets in _PRESETS.items():
        section = schema["$defs"][name]
        required = section.pop("required")
        section["properties"]["preset"] = {
            "enum": presets,
            "description": "named values for the keys that are not given here",
        }
        section["anyOf"] = [{"required": ["preset"]}, {"required": required}]
    _partial(schema, "ClusterSpec", ("device", "intra", "inter"))
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _partial(schema: dict[str, Any], section: str, nested: tuple[str, ...]) -> None:
    """Below a preset a nested section may override single keys: nothing in it is required then."""
    names = {
        schema["$defs"][section]["properties"][key]["$ref"].rpartition("/")[2] for key in nested
    }
    for name in names:
        schema["$defs"][name].pop("required", None)
