from __future__ import annotations

import pytest

from farandole.errors import NotAuthentic
from farandole.parallel.objects import signed, verified

SECRET = b"known to this run only"


@pytest.mark.parametrize("payload", [b"", b"payload", bytes(100_000)])
def test_what_was_signed_is_verified(payload: bytes) -> None:
    assert verified(signed(payload, SECRET, 3, 7), SECRET, 3, 7) == payload


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"payload",
        bytes(32) + b"payload",
        signed(b"payload", b"another secret", 3, 7),
        signed(b"payload", SECRET, 2, 7),  # of another rank
        signed(b"payload", SECRET, 3, 6),  # sent before
        signed(b"payload", SECRET, 3, 7)[:-1] + b"x",
        signed(b"payload", SECRET, 3, 7) + b"x",
    ],
)
def test_all_else_is_forged_and_its_rank_is_named(forged: bytes) -> None:
    with pytest.raises(NotAuthentic, match="from rank 3 was not signed"):
        verified(forged, SECRET, 3, 7)


def test_a_ring_without_a_secret_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="has a secret"):
        signed(b"payload", b"", 0, 0)
