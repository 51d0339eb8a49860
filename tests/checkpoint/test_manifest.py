from __future__ import annotations

import hashlib
import math

import pytest

from farandole.checkpoint import document
from farandole.checkpoint.manifest import DOCUMENT, TENSORS, FileSum, Manifest, summed
from farandole.checkpoint.store import Damaged
from farandole.errors import CheckpointError

FILES = {DOCUMENT: FileSum(3, "a" * 64), TENSORS: FileSum(9, "b" * 64)}


def signed(**changes: object) -> bytes:
    """A manifest with its own sum, in which something is otherwise."""
    about = {**document.decode(Manifest(7, 0.5, FILES).encode()), **changes}
    about.pop("sha256")
    own = hashlib.sha256(document.encode(about)).hexdigest()
    return document.encode({**about, "sha256": own})


@pytest.mark.parametrize("score", [None, 0.5, math.inf, -1e-300])
def test_there_and_back(score: float | None) -> None:
    manifest = Manifest(7, score, FILES)
    assert Manifest.decode(manifest.encode()) == manifest
    assert Manifest.decode(signed(score=score)).score == score


def test_not_one_bit_may_change() -> None:
    raw = Manifest(7, 0.5, FILES).encode()
    for position in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(Damaged):
            Manifest.decode(bytes(flipped))
    for length in range(len(raw)):
        with pytest.raises(Damaged):
            Manifest.decode(raw[:length])


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {}},
        {"files": {"../../etc/passwd": {"size": 1, "sha256": "a" * 64}}},
        {"files": {DOCUMENT: {"size": -1, "sha256": "a" * 64}, TENSORS: FILES[TENSORS]._asdict()}},
        {"files": {DOCUMENT: {"size": 1, "sha256": "A" * 64}, TENSORS: FILES[TENSORS]._asdict()}},
        {"files": {DOCUMENT: {"size": 1, "sha256": 7}, TENSORS: FILES[TENSORS]._asdict()}},
        {"files": [1, 2]},
        {"update": True},
        {"update": "7"},
        {"score": "best"},
    ],
)
def test_what_a_forger_signed_is_damaged_too(changes: dict[str, object]) -> None:
    with pytest.raises(Damaged):
        Manifest.decode(signed(**changes))


def test_a_deep_manifest_is_damaged() -> None:
    with pytest.raises(Damaged):
        Manifest.decode(b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}")


def test_another_format_is_no_damage() -> None:
    with pytest.raises(CheckpointError, match=r"farandole 9\.9, in format 2"):
        Manifest.decode(signed(format=2, farandole="9.9"))


def test_sums_are_those_of_hashlib() -> None:
    sums: dict[str, FileSum] = {}
    assert b"".join(summed(sums, "x", map(memoryview, [b"ab", b"", b"c"]))) == b"abc"
    assert sums == {"x": FileSum(3, hashlib.sha256(b"abc").hexdigest())}
