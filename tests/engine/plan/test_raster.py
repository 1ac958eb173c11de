import struct
import zlib

import numpy as np

from engine.plan.raster import encode_png, png
from engine.plan.setup import PlanLayout
from engine.plan.simulate import predicted_events
from tests.engine.plan.case import job


def decode(data):
    """An independent reader of the little of PNG that is written: RGB, 8 bits, filter 0."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, kinds, body, shape = 8, [], b"", (0, 0)
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        kind, inside = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        (check,) = struct.unpack(">I", data[place + 8 + size : place + 12 + size])
        assert check == zlib.crc32(kind + inside)
        kinds.append(kind)
        if kind == b"IHDR":
            width, height, depth, colour, *_ = struct.unpack(">IIBBBBB", inside)
            assert (depth, colour) == (8, 2)
            shape = (height, width)
        elif kind == b"IDAT":
            body += inside
        place += 12 + size
    assert kinds == [b"IHDR", b"IDAT", b"IEND"]
    lines = np.frombuffer(zlib.decompress(body), dtype=np.uint8).reshape(shape[0], -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(*shape, 3)


def test_an_image_comes_back_as_it_went_in():
    page = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert (decode(encode_png(page)) == page).all()


def test_forwards_and_backwards_are_painted_in_their_share_of_the_time():
    events = predicted_events(job("13b", gpus=32, batch=8), PlanLayout(tp=8, pp=4))
    page = decode(png(events, title="tp 8 pp 4"))
    forward = (page == (0x48, 0x78, 0xA8)).all(axis=2).sum()
    backward = (page == (0x6A, 0xA5, 0x6A)).all(axis=2).sum()
    assert 1.5 < backward / forward < 3
