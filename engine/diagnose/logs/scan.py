"""First cut: read a log at memory speed and keep only lines that a rule knows.

Digits are deleted from a chunk and the rest split into lines: all iterations of a healthy job
become a handful of equal templates, and each template is judged once. A word that does not
belong (`nan` where a number was) survives the deletion, so nothing is dropped for looking like
its neighbours.
"""

import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engine.diagnose.logs.rules import (
    DIGITS,
    STATIC,
    Match,
    match_in,
    stronger,
    talks_about,
)
from engine.diagnose.logs.table import RULES, Rule
from engine.diagnose.readers.files import FileFault, is_binary, read_chunks, read_limited

_DIGITS = b"0123456789"
_LINE_LIMIT = 1 << 20
_TEXT_LIMIT = 4096
_KEEP = 12
"""Hits kept per rule and file; the rest is counted."""
_TEMPLATES = 200_000

_STEMS = (
    b"rror", b"fail", b"warn", b"xception", b"raceback", b"abort", b"kill", b"imeout", b"imed out",
    b"ime out", b"atchdog", b"refused", b"nreachable", b"o route", b"reset", b"losed", b"roken",
    b"emory", b"orrupt", b"runcat", b"ismatch", b"uplicate", b"nvalid", b"llegal", b"ssert",
    b"o space", b"uota", b"o such", b"annot", b"nable to", b"link", b"throttl", b"straggl", b"slow",
    b"preempt", b"cancel", b"evict", b"requeue", b"signal", b"bus", b"fault", b"fatal", b"panic",
    b"lost", b"stuck", b"blocked", b"hung", b"hang", b"stall", b"tarv", b"bottleneck", b"overflow",
    b"not finite", b"non-finite", b"nonfinite", b"clients joined", b"endezvous", b"nclUniqueId",
    b"iommu", b"exit", b"too many", b"too large", b"esync", b"eadline", b"limit", b"ulimit",
    b"not found", b"not yet", b"in use", b"terminat", b"unknown", b"insufficient", b"received",
    b"spik", b"diverg", b"walltime", b"garbage", b"port", b"stale", b"short read", b"bad ",
    b"malloc", b"undefined", b"emapp", b"allback", b"perations have", b"dump", b"not running",
    b"navailable", b"reject", b"missing", b"differ", b"catastroph", b"compromis", b"shutdown",
    b"low on", b"nterrupt", b"isagree", b"acsctl", b"waiting in", b"retry", b"wrong", b"sw_reset",
    b"subset of", b"uncorrect", b"gc.", b"try_recover", b"not match", b"contains", b"nosuch",
    b"not equal", b"only has", b"utilizing", b"not ready", b"imex", b"parallel dims", b"is empty",
    b"order differs", b"not respond", b"exceed", b"unexpected", b"no device", b"no interface",
    b"drain", b"peration now in", b"neither af", b"loader_next", b"fetch_next", b"train_batch",
    b"heartbeat", b"no child", b"not registered", b"allocate",
    b"node_fail", b"state:", b"state=", b"reason=", b"out_of_me", b"lame workers",
    b"create new", b"culprit",
)  # fmt: skip
"""Pieces of lower-cased words, one of which every rule needs (a test checks the table)."""
_WORDS = re.compile(
    rb"\b(?:nan|nans|inf|infs|infinity|s?xid|gc|acs|dbe|ecc|oom|oomkilled|eof\w*|mtu|gid|gil|sig\w+|e[a-z]+inuse|"
    rb"xml|ras|down|drop|shm\w*|device|driver|interface|rank|ranks|nvlink|nvswitch|iommu\w*|loss|norm|"
    rb"checkpoint\w*|ckpt|clock\w*|gpu)\b"
)


_TOKENS = re.compile(
    r"(?P<keep>\[[^\]]*[a-zA-Z\\_][^\]]*\]|\\(?!d|b).)|(?P<edge>\\b)|"
    r"(?P<digits>(?:\\d|\[[\d-]+\]|\d+)(?:[+*?]\??|\{\d+,?\d*\})?)|(?P<times>\{\d+,?\d*\})"
)


_ERROR_FILE = re.compile(r"^error[^/]*\.json$")
_ERROR_LIMIT = 1 << 20


def _words_of(path: Path) -> list[bytes]:
    """What the error file of a torchrun worker says; none if it is no such file.

    Its call stack names files and lines of others: only the message is the worker's own.
    """
    if not _ERROR_FILE.match(path.name):
        return []
    try:
        value = msgspec.json.decode(read_limited(path, _ERROR_LIMIT), type=dict[str, Any])
        said = value["message"]
        text = said if isinstance(said, str) else said["message"]
    except (FileFault, ValueError, RecursionError, KeyError, TypeError):
        return []
    return [" ".join(str(text).split("\n")).encode(errors="replace") + b"\n"]


@functools.cache
def _loosened(pattern: str) -> re.Pattern[str]:
    """A pattern blind to digits: it matches every line of a template or none."""

    def relax(found: re.Match[str]) -> str:
        if found["keep"]:
            return found["keep"]
        return "" if found["edge"] else r"\d*" if found["digits"] else "*"

    return re.compile(_TOKENS.sub(relax, pattern), re.IGNORECASE)


_ROWS = {rule: number for number, rule in enumerate(RULES)}


class Hit(NamedTuple):
    """One line that a rule knows."""

    line: int
    offset: int
    text: str
    rule: int
    """Row of the table."""
    named: dict[str, str]
    """Rank, ranks, gpu or pid that the line names as concerned."""
    advice: bool
    """The line talks about an error (help text, a caught one) instead of reporting it."""


class FileScan(NamedTuple):
    """What one file holds."""

    path: Path
    size: int
    lines: int
    hits: dict[int, list[Hit]]
    """By row of the table."""
    counts: dict[int, int]
    head: str
    tail: str
    faults: tuple[str, ...]
    complete: bool = True
    """False: not all of it could be read, the end perhaps not."""


class Scanner:
    """Reads many files of one job; templates seen once are not judged again."""

    def __init__(self) -> None:
        self._dull: set[bytes] = set()
        self._known: dict[bytes, tuple[Match | None, tuple[Rule, ...]]] = {}

    def scan(self, path: Path) -> FileScan:
        """Every hit of a file, bounded per rule; faults instead of exceptions."""
        state = _State()
        try:
            for chunk in _words_of(path) or read_chunks(path):
                if state.size == 0 and is_binary(chunk):
                    state.faults.append("is no text")
                    state.complete = False
                    state.size = path.stat().st_size
                    break
                self._feed(state, chunk)
            if state.carry:
                self._lines(state, state.carry + b"\n")
        except FileFault as fault:
            if state.carry:
                self._lines(state, state.carry + b"\n")
            state.faults.append(str(fault))
            state.complete = False
        return FileScan(
            path, state.size, state.lines, state.hits, state.counts,
            state.head.decode(errors="replace"), state.tail.decode(errors="replace"),
            tuple(state.faults), state.complete,
        )  # fmt: skip

    def _feed(self, state: "_State", chunk: bytes) -> None:
        state.size += len(chunk)
        if len(state.head) < 4096:
            state.head += chunk[: 4096 - len(state.head)]
        state.tail = (state.tail + chunk)[-4096:] if len(chunk) < 4096 else chunk[-4096:]
        cut = chunk.rfind(b"\n") + 1
        if cut == 0:
            self._long(state, chunk)
            return
        block = state.carry + chunk[:cut]
        state.carry = chunk[cut:]
        if state.skipping:
            first = block.find(b"\n") + 1
            state.offset += first
            state.lines += 1
            block, state.skipping = block[first:], False
        if block:
            self._lines(state, block)

    def _long(self, state: "_State", chunk: bytes) -> None:
        """No line end in a chunk: collect up to a limit, then skip to the next line."""
        if state.skipping:
            state.offset += len(chunk)
            return
        state.carry += chunk
        if len(state.carry) > _LINE_LIMIT:
            state.faults.append(
                f"line {state.lines + 1} is longer than {_LINE_LIMIT} bytes: its start was read"
            )
            rest = len(state.carry)
            self._lines(state, state.carry[:_TEXT_LIMIT] + b"\n")
            state.lines -= 1
            state.offset += rest - _TEXT_LIMIT - 1
            state.carry, state.skipping = b"", True

    def _lines(self, state: "_State", block: bytes) -> None:
        """Judge whole lines: new templates once, lines of known ones by the table."""
        templates = block.translate(None, _DIGITS).split(b"\n")
        fresh = set(templates).difference(self._dull)
        if fresh:
            wanted = {t for t in fresh if t in self._known or self._is_odd(t)}
            if len(self._dull) > _TEMPLATES:
                self._dull.clear()
            self._dull |= fresh - wanted
            if wanted:
                self._second_cut(state, block, templates, wanted)
        state.lines += len(templates) - 1
        state.offset += len(block)

    def keeps(self, line: str) -> bool:
        """Whether the first cut keeps a line for the table."""
        return self._is_odd(line.encode().translate(None, _DIGITS))

    def _is_odd(self, template: bytes) -> bool:
        """Whether a template holds any word that a rule could need."""
        lower = template.lower()
        return any(stem in lower for stem in _STEMS) or _WORDS.search(lower) is not None

    def _second_cut(
        self, state: "_State", block: bytes, templates: list[bytes], wanted: set[bytes]
    ) -> None:
        raw = block.split(b"\n")
        offset = state.offset
        for index, template in enumerate(templates):
            if template in wanted and template not in self._dull:
                text = raw[index][:_TEXT_LIMIT].decode(errors="replace")
                found = self._judge(template, text)
                if found is not None:
                    row = _ROWS[found.rule]
                    line = state.lines + index + 1
                    state.keep(Hit(line, offset, text, row, found.named, talks_about(text)))
            offset += len(raw[index]) + 1

    def _judge(self, template: bytes, text: str) -> Match | None:
        known = self._known.get(template)
        if known is None:
            plain = match_in(STATIC, text)
            folded = text.casefold()
            digits = tuple(
                rule
                for rule in DIGITS  # those worth asking about each line of the template
                if rule.may_match(text, folded) and _loosened(rule.source).search(text)
            )
            known = (plain, digits)
            if plain is None and not digits:
                self._dull.add(template)
                return None
            if len(self._known) < _TEMPLATES:
                self._known[template] = known
        plain, digits = known
        if plain is not None and plain.named:
            plain = match_in((plain.rule,), text) or plain
        return stronger(plain, match_in(digits, text)) if digits else plain


class _State:
    """Progress within one file."""

    def __init__(self) -> None:
        self.size = self.lines = self.offset = 0
        self.carry = self.head = self.tail = b""
        self.skipping = False
        self.complete = True
        self.hits: dict[int, list[Hit]] = {}
        self.counts: dict[int, int] = {}
        self.faults: list[str] = []

    def keep(self, hit: Hit) -> None:
        """Count a hit, and hold the first ones of each rule."""
        count = self.counts.get(hit.rule, 0)
        self.counts[hit.rule] = count + 1
        if count < _KEEP:
            self.hits.setdefault(hit.rule, []).append(hit)
