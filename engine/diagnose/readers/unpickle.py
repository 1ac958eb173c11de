"""A pickle reader that builds plain containers and nothing else.

A flight-recorder dump is a pickle that somebody else wrote. Any instruction that would import a
name, call something or set state is refused before it runs; so are dumps that would grow
without bound.
"""

import io
import pickle
import pickletools
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


class _Plain(pickle.Unpickler):
    """Second lock behind the opcode check."""

    def find_class(self, module: str, name: str) -> Any:
        raise FileFault(f"asks to import {module}.{name}: refused")

    def persistent_load(self, pid: Any) -> Any:
        raise FileFault("asks for an object outside the file: refused")


def load_plain(data: bytes) -> Any:
    """The value of a pickle of plain containers; FileFault says what it asked for instead."""
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if opcode.name not in _ALLOWED:
                what = f" ({argument})" if isinstance(argument, str) else ""
                raise FileFault(f"holds the instruction {opcode.name}{what[:120]}: refused")
            if count > OPCODES:
                raise FileFault(f"holds more than {OPCODES} instructions: refused")
    except ValueError as error:
        raise FileFault(f"is no complete pickle: {error}") from None
    except (IndexError, OverflowError, UnicodeDecodeError, MemoryError) as error:
        raise FileFault(f"is damaged: {error}") from None
    try:
        return _Plain(io.BytesIO(data)).load()
    except FileFault:
        raise
    except Exception as error:  # a pickle can fail in any way; none of them is ours
        raise FileFault(f"is damaged: {type(error).__name__}: {error}") from None
