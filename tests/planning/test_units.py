from __future__ import annotations

import pytest

from farandole.errors import InputError
from farandole.planning import units


@pytest.mark.parametrize(
    ("text", "bytes_a_second"),
    [("25Gbit", 25e9 / 8), ("25 Gbps", 25e9 / 8), ("400Mbit/s", 5e7), ("3GB/s", 3e9)],
)
def test_links_are_sold_in_bits(text: str, bytes_a_second: float) -> None:
    assert units.speed("link", text) == pytest.approx(bytes_a_second)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10us", 1e-5), ("10µs", 1e-5), ("120 ms", 0.12), ("1e-3s", 1e-3), ("2h", 7200.0)],
)
def test_durations(text: str, expected: float) -> None:
    assert units.seconds("latency", text) == pytest.approx(expected)


def test_sizes_are_decimal_unless_they_say_otherwise() -> None:
    assert units.size("memory", "1,000MB") == 1e9
    assert units.size("memory", "2GiB") == 2**31


@pytest.mark.parametrize("text", ["25", "fast", "25 parsec", "-1Gbit", "0Gbit", "1..2Gbit", ""])
def test_a_link_that_is_none_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(InputError, match='such as "25Gbit"'):
        units.speed("link", text)


@pytest.mark.parametrize("value", [True, float("nan"), float("inf"), -1, None])
def test_numbers_have_to_be_positive(value: float) -> None:
    with pytest.raises(InputError, match=r"latency must be .* Received: latency="):
        units.seconds("latency", value)


def test_ranges_double() -> None:
    assert units.counts("workers", "1..10000")[-3:] == (4096, 8192, 10000)
    assert units.counts("workers", "3..12") == (3, 6, 12)
    assert units.counts("workers", [4, 2, 4]) == (2, 4)


@pytest.mark.parametrize("value", ["8..2", "0..4", "two", "1.5", [0], [1.5], [], True, "1..2..3"])
def test_worker_counts_that_are_none(value: object) -> None:
    with pytest.raises(InputError, match="workers must be positive integers"):
        units.counts("workers", value)  # type: ignore[arg-type]
