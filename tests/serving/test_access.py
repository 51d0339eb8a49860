"""Tokens, and pages of other sites."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from farandole.errors import InputError
from farandole.serving.access import check_origin, check_token, read_token
from farandole.serving.refusal import Refusal

TOKEN = "a-token-of-some-length"


def basic(password: str) -> bytes:
    return b"Basic " + base64.b64encode(f"me:{password}".encode())


@pytest.mark.parametrize(
    "given", [f"Bearer {TOKEN}".encode(), f"bearer  {TOKEN}".encode(), basic(TOKEN)]
)
def test_the_token_lets_in(given: bytes) -> None:
    check_token(TOKEN, {b"authorization": given})


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 401),
        (b"Bearer", 403),
        (b"Bearer ", 403),
        (f"Bearer {TOKEN}x".encode(), 403),
        (f"Bearer {TOKEN[:-1]}".encode(), 403),
        ("Bearer ü".encode(), 403),
        (f"Digest {TOKEN}".encode(), 403),
        (basic("guess"), 401),
        (b"Basic !!", 401),
    ],
)
def test_everything_else_does_not(given: bytes | None, status: int) -> None:
    with pytest.raises(Refusal) as refused:
        check_token(TOKEN, {} if given is None else {b"authorization": given})
    assert refused.value.status == status
    assert TOKEN not in str(refused.value)


def test_only_pages_of_the_server_itself_may_post() -> None:
    check_origin({})
    check_origin({b"origin": b"http://127.0.0.1:8080", b"host": b"127.0.0.1:8080"})
    for origin in (b"http://evil.example", b"null", b"http://[", b"http://127.0.0.1:8081"):
        with pytest.raises(Refusal, match="other sites"):
            check_origin({b"origin": origin, b"host": b"127.0.0.1:8080"})


def test_a_token_file_holds_one_long_word(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(str(file)) == TOKEN
    for text in ("", "short", f"{TOKEN} {TOKEN}"):
        file.write_text(text)
        with pytest.raises(InputError, match="one token of at least 16"):
            read_token(str(file))
    with pytest.raises(InputError, match="can't be read"):
        read_token(str(tmp_path / "none"))
