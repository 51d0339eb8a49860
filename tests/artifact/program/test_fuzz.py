"""A good program, changed at random: it predicts, or it is refused, and it never runs code."""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.artifact.program import attacks
from tests.artifact.program.attacks import CONSTANTS, MODEL, ROWS, WEIGHTS

from farandole.artifact.program import read_program
from farandole.errors import ArtifactError


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document: what holds it, and its key there."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def payloads(trap: Path) -> list[Any]:
    code = attacks.code(trap)
    return [
        f"x={code}",
        f"'+{code}+'",
        f"x\n{code}\n",
        f"torch.ops.aten.add.Tensor({code})",
        code,
        "torch.ops.aten.from_file.default",
        "torch._utils_internal.canary",
        "canary:Canary",
        json.dumps([{"__enum__": True, "fqn": "canary:Canary", "name": "x"}]),
        f"Symbol('s0') + {code}",
        "../../../../etc/passwd",
        "__class__",
        "",
        None,
        True,
        -1,
        1 << 40,
        1 << 70,
        float("inf"),
        [],
        {},
        [[[]]],
        {"as_string": f"' or {code} or '"},
        {"as_operator": "torch.load"},
        {"as_custom_obj": {"name": "x", "class_fqn": "canary.Canary"}},
        {"as_expr": {"expr_str": code, "hint": {"as_int": 3}}},
        {"__enum__": True, "fqn": "canary:Canary", "name": "x"},
    ]


def changed(document: Any, chance: random.Random, trap: Path) -> Any:
    """The document with one change, somewhere."""
    made = copy.deepcopy(document)
    holder, key = chance.choice(list(places(made)))
    match chance.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[str(chance.choice(payloads(trap)))] = holder.pop(key)
        case 2:
            other, another = chance.choice(list(places(made)))
            holder[key] = copy.deepcopy(other[another]) if other is not holder else None
        case 3 if isinstance(holder[key], str):
            place = chance.randrange(len(holder[key]) + 1)
            holder[key] = holder[key][:place] + f"{attacks.code(trap)}" + holder[key][place:]
        case _:
            holder[key] = chance.choice(payloads(trap))
    return made


@pytest.fixture(scope="module")
def good() -> attacks.Files:
    return attacks.good_files()


def try_one(files: attacks.Files, path: Path, trap: Path, label: str) -> bool:
    """Whether it loads; what does is asked for a prediction."""
    attacks.write(files, path)
    try:
        program = read_program(path)
    except ArtifactError:
        return False
    finally:
        assert not trap.exists(), label
    with torch.no_grad(), suppress(Exception):  # a network may be wrong, as any other
        program(ROWS)
    assert not trap.exists(), label
    return True


def fuzz(good: attacks.Files, tmp_path: Path, seeds: range, monkeypatch: Any) -> int:
    trap = tmp_path / "trap"
    text = f"import os\nos.mkdir({str(trap)!r})\n"
    (tmp_path / "canary.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    loaded = 0
    for seed in seeds:
        chance = random.Random(seed)
        name = chance.choice([MODEL, MODEL, MODEL, WEIGHTS, CONSTANTS])
        document = changed(json.loads(good[name]), chance, trap)
        files = {**good, name: json.dumps(document).encode()}
        loaded += try_one(files, tmp_path / "net.pt2", trap, f"seed {seed}")
    assert "canary" not in sys.modules
    return loaded


@pytest.mark.attack("120 mutated exported programs", "the same answers, or ArtifactError")
def test_changed_documents(good: attacks.Files, tmp_path: Path, monkeypatch: Any) -> None:
    loaded = fuzz(good, tmp_path, range(120), monkeypatch)
    assert 5 < loaded < 100  # changes of both kinds were tried


@pytest.mark.exhaustive
def test_many_changed_documents(good: attacks.Files, tmp_path: Path, monkeypatch: Any) -> None:
    fuzz(good, tmp_path, range(1000, 6000), monkeypatch)


def test_flipped_bytes(good: attacks.Files, tmp_path: Path) -> None:
    path = attacks.write(good, tmp_path / "net.pt2")
    content = path.read_bytes()
    for seed in range(60):
        chance = random.Random(seed)
        damaged = bytearray(content)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        if chance.randrange(3) == 0:
            damaged = damaged[: chance.randrange(len(damaged))]
        path.write_bytes(damaged)
        try:
            read_program(path)
        except ArtifactError:
            continue
