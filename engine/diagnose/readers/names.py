"""Which rank the name of a file tells."""

import re

_SAID = re.compile(r"(?:^|[._-])(?:rank|r)[_.-]?0*(\d{1,7})(?=$|[._-])", re.IGNORECASE)
_LAST = re.compile(r"(\d{1,7})(?:\.[A-Za-z]\w*)*$")


def rank_of_name(name: str) -> int | None:
    """`pyspy_rank2_pid99.txt`, `_dump_2.pickle`: what is called rank, else the last number."""
    found = _SAID.search(name) or _LAST.search(name)
    return int(found[1]) if found else None
