"""Who may ask: a token that is compared in constant time, and no pages of other sites.

A page of another site may give its own name the address of this machine. Its browser then takes the
server for that site's, and only the name that it asks for, in `Host`, tells.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from farandole.errors import InputError
from farandole.serving.http_body import Headers
from farandole.serving.refusal import Refusal

SHORTEST = 16
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LONGEST = 256
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::\d*)?")
_ASK = {"www-authenticate": 'Bearer realm="farandole", Basic realm="farandole"'}


def read_token(path: str) -> str:
    """The token in a file: its first line."""
    try:
        words = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The token file can't be read: {error}") from error
    if len(words) != 1 or len(words[0]) < SHORTEST or not words[0].isascii():
        raise InputError(
            f"{path!r} must hold one token of at least {SHORTEST} characters, such as the output "
            'of: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return words[0]


def check_own_token(token: str | None) -> None:
    """Raise if a server's token is empty: a request without one would have it."""
    if token is not None and not token.strip():
        raise InputError("The token is empty. Give a longer one, or none.")


def check_token(token: str | None, headers: Headers) -> None:
    """Raise unless the request has the token, if there is one.

    A program sends `Authorization: Bearer TOKEN`; a browser asks for it as a password.

    >>> check_token(None, {})
    >>> check_token("secret", {b"authorization": b"Bearer guess"})
    Traceback (most recent call last):
    ...
    farandole.serving.refusal.Refusal: The token is wrong.
    """
    if token is None:
        return
    given = headers.get(b"authorization")
    if given is None:
        raise Refusal(401, "A token is needed: Authorization: Bearer TOKEN.", _ASK)
    kind, _, value = given.partition(b" ")
    if kind.lower() == b"basic":
        value = _password(value)
    elif kind.lower() != b"bearer":
        value = b""
    if not hmac.compare_digest(value.strip(), token.encode()):
        # A browser that sent a wrong password is to ask for another one.
        status = 401 if kind.lower() == b"basic" else 403
        raise Refusal(status, "The token is wrong.", _ASK if status == 401 else {})


def check_origin(headers: Headers) -> None:
    """Raise if a browser sends this for a page of another site."""
    origin = headers.get(b"origin")
    if origin is None:
        return
    try:
        site = urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        site = ""
    if site.encode("latin-1") != headers.get(b"host", b""):
        raise Refusal(403, "Pages of other sites may not ask here.")


def check_host(names: Collection[str] | None, headers: Headers) -> None:
    """Raise if the server is asked by a name that isn't its own; None: it may have any.

    >>> check_host(["localhost"], {b"host": b"localhost:8080"})
    >>> check_host(["localhost"], {b"host": b"evil.example:8080"})
    Traceback (most recent call last):
    ...
    farandole.serving.refusal.Refusal: This server isn't 'evil.example' (see --allowed-host).
    """
    given = headers.get(b"host")
    if names is None or given is None:  # a browser always says it
        return
    name = host_name(given[:_LONGEST])
    if name not in names:
        raise Refusal(403, f"This server isn't {name!r} (see --allowed-host).")


@lru_cache(maxsize=64)
def host_name(given: bytes) -> str:
    """The name in a `Host` header, without the port.

    >>> host_name(b"LOCALHOST:80"), host_name(b"[::1]:80"), host_name(b"::1")
    ('localhost', '::1', '::1')
    """
    text = given.decode("latin-1").lower()
    found = _HOST.fullmatch(text)
    return text if found is None else found[1] or found[2]


def _password(value: bytes) -> bytes:
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
