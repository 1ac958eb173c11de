"""Texts that a line must contain for a pattern to match it: a quick no before the slow answer.

Patterns that ignore case have no fast path in `re`: each is tried at every position of a line. To
look for a piece of text first is some fifty times as fast, and most rules fail there.
"""

from collections.abc import Iterator

_SHORTEST = 3
_CLASSES = frozenset("dwsDWSbBAZ0123456789")
"""After a backslash: not the character itself."""


def pieces_of(pattern: str) -> tuple[str, ...]:
    """Lower-cased texts without digits of which every match contains one; none if not known.

    For patterns that ignore case. Never too many: what is not understood counts as nothing known.
    """
    found: list[str] = []
    for branch in _branches(pattern):
        best = max(_candidates(branch), key=_worth, default=())
        if not best or _worth(best) < _SHORTEST:
            return ()
        found += best
    return tuple(dict.fromkeys(found))


def _worth(pieces: tuple[str, ...]) -> int:
    """A choice of pieces is as good as its shortest."""
    return min(map(len, pieces), default=0)


def _branches(pattern: str) -> list[str]:
    """The alternatives at the top of a pattern."""
    cuts = [at for at, token in _tokens(pattern) if token == "|"]
    ends = [*cuts, len(pattern)]
    return [pattern[a:b] for a, b in zip([0, *(c + 1 for c in cuts)], ends, strict=True)]


def _candidates(branch: str) -> Iterator[tuple[str, ...]]:
    """Choices of which each must be there: runs of plain characters, and groups."""
    run = ""
    tokens = list(_tokens(branch))
    for number, (_, token) in enumerate(tokens):
        after = tokens[number + 1][1] if number + 1 < len(tokens) else ""
        may_lack = after[:1] in ("?", "*", "{")
        plain = _plain(token)
        if plain and not may_lack:
            run += plain
            if after[:1] != "+":
                continue
        if run:
            yield (run.lower(),)
        run = ""
        if token.startswith("(") and not may_lack:
            inside = _inside(token)
            if inside:
                yield pieces_of(inside)
    if run:
        yield (run.lower(),)


def _plain(token: str) -> str:
    """The character that a token stands for; empty if it stands for several, for a digit or none.

    What is case-folded to several characters would be looked for in vain.
    """
    if len(token) == 2 and token[0] == "\\" and token[1] not in _CLASSES:
        token = token[1]
    elif len(token) != 1 or token in ".^$?*+|":
        return ""
    return token if token.isascii() and not token.isdigit() else ""


def _inside(group: str) -> str:
    """What a group must match; empty for what only looks around."""
    body = group[1:-1]
    if body.startswith("?:"):
        return body[2:]
    if body.startswith("?P<"):
        return body.partition(">")[2]
    return "" if body.startswith("?") else body


def _tokens(pattern: str) -> Iterator[tuple[int, str]]:
    """(place, token): characters, escapes, classes, groups and counts as a whole."""
    at = 0
    while at < len(pattern):
        end = _end(pattern, at)
        yield at, pattern[at:end]
        at = end


def _end(pattern: str, at: int) -> int:
    """Where the token that begins here ends."""
    first = pattern[at]
    if first == "\\":
        return at + 2
    if first == "[":
        at += 2 + (pattern[at + 1] == "^")  # a bracket that comes first is none
        while pattern[at] != "]":
            at += 2 if pattern[at] == "\\" else 1
        return at + 1
    if first == "(":
        at += 1
        while pattern[at] != ")":
            at = _end(pattern, at)
        return at + 1
    if first == "{":
        return pattern.index("}", at) + 1
    return at + 1
