"""A pickle reader that builds plain containers and nothing else.

A flight-recorder dump is a pickle that somebody else wrote. Any instruction that would import a
name, call something or set state is refused before it runs; so are dumps that would grow
without bound. The check runs over instructions as a regular expression does: a whole fleet's dumps
are gigabytes.
"""

import gc
import io
import pickle
import pickletools
import re
import sys
from typing import Any

from engine.diagnose.readers.files import FileFault

_ALLOWED = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE",
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
    "EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS", "FROZENSET",
    "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
})  # fmt: skip
"""Opcodes that only put values together; GLOBAL, REDUCE, BUILD, INST, PERSID, EXT are out."""

OPCODES = 50_000_000

_SHORT = 32
_STRINGS = b"|".join(b"%b\0\0\0.{%d}" % (re.escape(bytes([n])), n) for n in range(_SHORT))
_MANY = b"++" if sys.version_info >= (3, 11) else b"+"  # nothing follows: no way back is needed
_RUN = re.compile(
    rb"(?:[\x80Khq].|[(012Naeltdsu\]})\x85-\x89\x8f-\x91\x94]|r..[\x00-\x0f]\x00|M.."
    rb"|\x8a(?:\x08.{8}|\x07.{7}|\x06.{6}|\x05.{5})|X(?:" + _STRINGS + rb")"
    rb"|[Jj].{4}|[G\x95].{8})" + _MANY,
    re.DOTALL,
)
"""Allowed instructions but STOP, the most frequent first: those of a fixed length, integers of 5 to
8 bytes, texts below 32 bytes, LONG_BINPUT as far as a million (16 MiB)."""
_SIZED = {
    op: width
    for ops, width in ((b"\x8a\x8cUC", 1), (b"\x8bXTB", 4), (b"\x8d\x8e\x96", 8))
    for op in ops
}
"""Allowed instructions that begin with their size: opcode -> bytes of the size."""
_STOP, _LONG_BINPUT = b".r"
_BUFFER = 1 << 20


class _Plain(pickle.Unpickler):
    """Second lock behind the opcode check."""

    def find_class(self, module: str, name: str) -> Any:
        raise FileFault(f"asks to import {module}.{name}: refused")

    def persistent_load(self, pid: Any) -> Any:
        raise FileFault("asks for an object outside the file: refused")


def load_plain(data: bytes) -> Any:
    """The value of a pickle of plain containers; FileFault says what it asked for instead."""
    if not _is_plain(data):
        _refuse(data)
    collects = gc.isenabled()
    gc.disable()  # everything made here is kept: collections would only look at it again and again
    try:
        # buffered, since without a `peek` each instruction would be a call of `read`
        return _Plain(io.BufferedReader(io.BytesIO(data), _BUFFER)).load()
    except FileFault:
        raise
    except Exception as error:  # a pickle can fail in any way; none of them is ours
        raise FileFault(f"is damaged: {type(error).__name__}: {error}") from None
    finally:
        if collects:
            gc.enable()


def _is_plain(data: bytes) -> bool:
    """Whether all instructions up to STOP are allowed binary ones; if not, look closer."""
    at, end = 0, len(data)
    if end > OPCODES:  # no more instructions than bytes
        return False
    while at < end:
        run = _RUN.match(data, at)
        if run is not None:
            at = run.end()
            if at >= end:
                return False
        op = data[at]
        width = _SIZED.get(op)
        if width is not None:
            at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
        elif op == _LONG_BINPUT:
            if int.from_bytes(data[at + 1 : at + 5], "little") > at:
                return False
            at += 5
        else:
            return op == _STOP
    return False


def _refuse(data: bytes) -> None:
    """Raise FileFault for the first instruction that is not allowed; return if there is none."""
    try:
        argument: Any
        for count, (opcode, argument, at) in enumerate(pickletools.genops(data)):
            if opcode.name not in _ALLOWED:
                what = f" ({argument})" if isinstance(argument, str) else ""
                raise FileFault(f"holds the instruction {opcode.name}{what[:120]}: refused")
            # a place in the memo makes the reader set aside all places before it
            if opcode.name in ("PUT", "LONG_BINPUT") and not 0 <= argument <= at:
                raise FileFault(f"asks for room for {argument} values: refused")
            if count > OPCODES:
                raise FileFault(f"holds more than {OPCODES} instructions: refused")
    except ValueError as error:
        raise FileFault(f"is no complete pickle: {error}") from None
    except (IndexError, OverflowError, UnicodeDecodeError, MemoryError) as error:
        raise FileFault(f"is damaged: {error}") from None
