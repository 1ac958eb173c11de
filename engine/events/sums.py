"""A step in a few lines: what its spans would add up to, where not every one is to be kept.

At ten thousand ranks a line per action is terabytes a day. A step that is summed up has one span
for each thing done (a chunk's forwards, waits for one axis), as long as all of them together less
what closed inside them; `times` says how many they were. Readers that add up get the same sums.
"""

from engine.events.schema import Attr

Key = tuple[str, Attr, Attr]
ADDED = ("bytes",)
LARGEST = ("microbatch",)
TIMES, SUMMED = "times", "summed"
"""Attributes of a span that stands for several, and of a step that holds such spans."""


class Sums:
    """The spans of one step so far, by name and by what tells them apart."""

    def __init__(self) -> None:
        self._own_ns: dict[Key, int] = {}
        self._attrs: dict[Key, dict[str, Attr]] = {}

    def add(self, name: str, own_ns: int, attrs: dict[str, Attr]) -> None:
        """A span ended; own_ns: its length less that of the spans that ended inside it."""
        key = (name, attrs.get("chunk"), attrs.get("on"))
        known = self._attrs.get(key)
        self._own_ns[key] = self._own_ns.get(key, 0) + max(0, own_ns)
        if known is None:
            self._attrs[key] = {**attrs, TIMES: 1}
            return
        known[TIMES] = _number(known.get(TIMES)) + 1
        for field in ADDED:
            if field in attrs:
                known[field] = _number(known.get(field)) + _number(attrs[field])
        for field in LARGEST:
            if field in attrs:
                known[field] = max(_number(known.get(field)), _number(attrs[field]))

    def spans(self, start_ns: int) -> list[tuple[str, int, int, dict[str, Attr]]]:
        """(name, start, length, attributes) of all, laid one after the other from a start."""
        made = []
        for key, own_ns in self._own_ns.items():
            made.append((key[0], start_ns, own_ns, self._attrs[key]))
            start_ns += own_ns
        return made


def _number(value: Attr) -> int:
    return int(value) if isinstance(value, int | float) else 0
