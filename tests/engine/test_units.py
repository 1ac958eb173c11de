import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import units


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1610612736, "1.50 GiB"),
     (2**60, "1024.00 PiB"), (-2048, "-2.00 KiB")],
)  # fmt: skip
def test_bytes(value, text):
    assert units.show_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 ns"), (3.5e-4, "350 us"), (0.02, "20 ms"), (6.34, "6.34 s"), (119.6, "120 s"),
     (125, "2 min 05 s"), (7500, "2 h 05 min"), (293760, "3.4 days"), (float("inf"), "inf")],
)  # fmt: skip
def test_seconds(value, text):
    assert units.show_seconds(value) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(6.1, 6.79, "6.10-6.79 s"), (0.131, 0.179, "131-179 ms"), (150, 210, "2.50-3.50 min"),
     (5400, 9000, "1.50-2.50 h"), (16382461.71, 22650905.62, "189.61-262.16 days"),
     (100.0, 139.0, "100.00-139.00 s"), (1.0, float("inf"), "1.0-inf")],
)  # fmt: skip
def test_a_span_has_one_unit(low, high, text):
    assert units.show_span(low, high) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12, "", "12"),
        (174.8e9, "", "174.8 G"),
        (1.98e6, "tokens/s", "1.98 Mtokens/s"),
        (0.5, "", "0.5"),
    ],
)
def test_count(value, unit, text):
    assert units.show_count(value, unit) == text


def test_ratio():
    assert units.show_ratio(0.552) == "55.2 %"


@pytest.mark.parametrize(
    ("text", "value"),
    [("80GiB", 80 * 2**30), ("512 MiB", 2**29), ("1e9", 10**9), ("64k", 64_000),
     ("1_000", 1000), ("0.5 GB", 5 * 10**8)],
)  # fmt: skip
def test_parse_bytes(text, value):
    assert units.parse_bytes(text) == value


def test_one_is_no_plural():
    shown = [units.show_number(count, "rank") for count in (0, 1, 2)]
    assert shown == ["0 ranks", "1 rank", "2 ranks"]


@pytest.mark.parametrize("text", ["", "GiB", "ten", "1 XB"])
def test_parse_bytes_refuses(text):
    with pytest.raises(ValueError, match="could not convert"):
        units.parse_bytes(text)


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "-2GiB", "infMiB", "1e400"])
def test_parse_bytes_refuses_what_is_no_amount(text):
    with pytest.raises(ValueError, match="is no amount of bytes"):
        units.parse_bytes(text)


@given(st.integers(0, 2**50))
def test_shown_bytes_read_back_to_their_two_decimals(value):
    assert units.parse_bytes(units.show_bytes(value)) == pytest.approx(value, rel=0.006)
