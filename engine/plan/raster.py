"""A predicted step as a PNG: the same picture as `draw`, painted without a plotting library."""

import struct
import zlib

import numpy as np
import numpy.typing as npt

from engine.events.schema import Event
from engine.plan.draw import COLOURS, lanes_of

Pixels = npt.NDArray[np.uint8]
_ROW, _WIDTH, _LEFT, _SCALE = 18, 1600, 110, 2

_GLYPHS = {
    "0": "755557", "1": "262227", "2": "717447", "3": "717117", "4": "557111", "5": "747117",
    "6": "747557", "7": "711122", "8": "757557", "9": "757117", "a": "025755", "b": "465656",
    "c": "034443", "d": "065556", "e": "074647", "f": "074644", "g": "034557", "h": "445655",
    "i": "020222", "j": "011153", "k": "455655", "l": "444447", "m": "057755", "n": "065555",
    "o": "025552", "p": "065644", "q": "035311", "r": "065655", "s": "034216", "t": "272221",
    "u": "055557", "v": "055552", "w": "055775", "x": "055255", "y": "055226", "z": "071247",
    "-": "000700", ".": "000002", "_": "000007",
}  # fmt: skip
"""Three pixels wide, six high: one octal digit a row, the highest bit left."""


def png(events: list[Event], *, title: str) -> bytes:
    """All spans of a step as a PNG image."""
    spans = [e for e in events if e.kind == "span" and e.name in COLOURS and e.dur_ns > 0]
    rows = {lane: index for index, lane in enumerate(lanes_of(spans))}
    end = max((e.t_ns + e.dur_ns for e in spans), default=1)
    page: Pixels = np.full(((len(rows) + 3) * _ROW, _LEFT + _WIDTH + 20, 3), 255, dtype=np.uint8)
    _write(page, 8, 4, f"{title} - {end / 1e9:.3f} s")
    for (rank, stream), index in rows.items():
        _write(page, 8, (index + 1) * _ROW + 2, f"r{rank} {stream}")
    for event in spans:
        left = _LEFT + round(event.t_ns / end * _WIDTH)
        right = max(left + 1, _LEFT + round((event.t_ns + event.dur_ns) / end * _WIDTH))
        top = (rows[event.rank, event.stream] + 1) * _ROW
        page[top : top + _ROW - 3, left : max(left + 1, right - 1)] = _colour(event.name)
    place = 8
    for name in COLOURS:
        page[-12:-4, place : place + 8] = _colour(name)
        _write(page, place + 12, page.shape[0] - 14, name)
        place += 40 + len(name) * 4 * _SCALE
    return encode_png(page)


def encode_png(page: Pixels) -> bytes:
    """An RGB image, [height, width, 3], as a PNG file."""
    height, width, _ = page.shape
    plain = np.zeros((height, width * 3 + 1), dtype=np.uint8)  # each line begins with filter 0
    plain[:, 1:] = page.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(plain.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _colour(name: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(COLOURS[name][1:]))


def _write(page: Pixels, left: int, top: int, text: str) -> None:
    """Letters of the small font; what it lacks is left blank."""
    for letter in text.lower():
        for y, row in enumerate(_GLYPHS.get(letter, "")):
            for x in range(3):
                if int(row, 8) & (4 >> x):
                    a, b = top + y * _SCALE, left + x * _SCALE
                    page[a : a + _SCALE, b : b + _SCALE] = 40
        left += 4 * _SCALE
