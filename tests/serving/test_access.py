"""Tokens, and pages of other sites."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from farandole.errors import InputError
from farandole.serving import Serving
from farandole.serving.access import check_host, check_origin, check_token, read_token
from farandole.serving.app import App, Limits
from farandole.serving.batching import Batching
from farandole.serving.refusal import Refusal
from farandole.serving.repository import Repository

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


def test_a_loopback_server_is_asked_by_its_own_names_only() -> None:
    """Else a page of another site could give its name this machine's address, and ask."""
    local = Serving(models=("net",)).hosts
    for host in (b"localhost:8080", b"127.0.0.1", b"[::1]:8080", b"LocalHost"):
        check_host(local, {b"host": host})
    check_host(local, {})  # no browser
    others = (
        b"evil.example", b"evil.example:8080", b"localhost.evil.example", b"", b"\xff",
        b"127.0.0.1.evil.example:80", b"[::1].evil.example", b"evil.example@localhost",
    )  # fmt: skip
    for host in others:
        with pytest.raises(Refusal) as refused:
            check_host(local, {b"host": host})
        assert refused.value.status == 403


def test_other_names_can_be_allowed_and_a_token_is_enough() -> None:
    named = Serving(models=("net",), allowed_hosts=("Models.example",))
    served = App(Repository([], lambda *_: None, Batching()), limits=Limits(), hosts=named.hosts)  # type: ignore[arg-type,return-value]
    for host in (b"models.example:80", b"localhost"):
        check_host(served.hosts, {b"host": host})
    with pytest.raises(Refusal, match="isn't 'other"):
        check_host(served.hosts, {b"host": b"other.example"})
    for free in ({"allowed_hosts": ("*",)}, {"token": TOKEN}, {"host": "0.0.0.0"}):
        assert Serving(models=("net",), **free).hosts is None  # type: ignore[arg-type]
    assert Serving.from_json(named.to_json()) == named
