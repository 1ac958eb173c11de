"""A small legal recipe, changed section by section."""

from typing import Any

import msgspec

from engine.spec.recipe import Recipe

BASE: dict[str, Any] = {
    "name": "sample",
    "model": {"layers": 8, "hidden": 64, "heads": 4, "vocab": 256, "seq": 64},
    "layout": {"tp": 2, "pp": 2, "vpp": 2, "dp": 2},
    "batch": {"global_batch": 16, "micro_batch": 2},
}


def changed(**sections: Any) -> Recipe:
    """The sample with some keys of some sections replaced."""
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in BASE.items()}
    for name, keys in sections.items():
        data[name] = data.get(name, {}) | keys if isinstance(keys, dict) else keys
    return msgspec.convert(data, Recipe)
