"""Against safetensors itself, which reads what we write and writes what we read."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import torch as safetensors
from tests.checkpoint.snapshots import same_tensor

from farandole.checkpoint import tensor_file
from farandole.checkpoint.store import Damaged
from farandole.checkpoint.tensor_file import TensorFile, read_tensors
from farandole.errors import CheckpointError

DTYPES = sorted(safetensors._TYPES.values(), key=str)


def written(tensors: dict[str, torch.Tensor]) -> bytes:
    return b"".join(TensorFile(tensors).chunks())


def read(raw: bytes) -> dict[str, torch.Tensor]:
    return read_tensors(io.BytesIO(raw), len(raw))


def of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Any bits, but that a truth value is 0 or 1."""
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    count = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_of_safetensors(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"a": of(dtype, 3, 5), "scalar": of(dtype), "none": of(dtype, 2, 0)}
    raw = written(tensors)
    (tmp_path / "ours").write_bytes(raw)
    theirs = safetensors.load_file(tmp_path / "ours")
    safetensors.save_file(tensors, tmp_path / "theirs")
    for found in (theirs, read(raw), read((tmp_path / "theirs").read_bytes())):
        assert found.keys() == tensors.keys()
        assert all(same_tensor(found[name], tensors[name]) for name in tensors)


def test_a_mixed_state_in_the_order_in_which_it_was_given() -> None:
    shared = torch.arange(12.0)
    tensors = {
        "z": torch.ones(3, dtype=torch.uint8),
        "transposed": shared.reshape(3, 4).T,
        "a part": shared[2:5],
        "a": torch.tensor(math.pi, dtype=torch.float64, requires_grad=True),
        "expanded": torch.ones(1).expand(4),
        "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
        "größe": torch.ones(1, dtype=torch.bfloat16),
    }
    raw = written(tensors)
    found, theirs = read(raw), safetensors.load(raw)
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert same_tensor(found[name], tensor.detach().resolve_conj())
        assert same_tensor(theirs[name], found[name])
        assert found[name].data_ptr() % tensor.element_size() == 0


def test_more_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "CHUNK", 1000)
    tensors = {"a": torch.randn(999), "b": torch.randn(1000)}
    file = TensorFile(tensors)
    sizes = [len(chunk) for chunk in file.chunks()]
    assert sum(sizes) == file.size
    assert max(sizes[1:]) == 1000
    assert all(same_tensor(read(written(tensors))[name], tensors[name]) for name in tensors)


def test_no_tensors_at_all() -> None:
    assert read(written({})) == {}


@pytest.mark.parametrize(
    ("name", "tensor", "complaint"),
    [
        ("a", [1.0], r"tensors\['a'\] must be a tensor"),
        ("a", torch.ones(2).to_sparse(), "sparse"),
        ("a", torch.ones(2, device="meta"), "device meta"),
        ("a", torch.ones(2, dtype=torch.complex128), "complex128"),
        ("__metadata__", torch.ones(2), "keeps for itself"),
        ("a\n", torch.ones(2), "printed"),
        (3, torch.ones(2), "Received: 3"),
    ],
)
def test_what_cannot_be_written_is_named(name: Any, tensor: Any, complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        TensorFile({name: tensor})


def file_with(header: Any, data: bytes = b"\0" * 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: Any = 0, end: Any = 8, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


HOSTILE = {
    "giant header": (2**62).to_bytes(8, "little") + b"{}",
    "header longer than the file": (100).to_bytes(8, "little") + b"{}",
    "too short": b"\0\0",
    "no JSON": file_with(b"{"),
    "no object": file_with([1]),
    "deep": file_with(b"[" * 200_000),
    "no entry": file_with({"a": 3}),
    "no offsets": file_with({"a": {"dtype": "F32", "shape": [2]}}),
    "unknown dtype": file_with({"a": entry(dtype="F33")}),
    "list as dtype": file_with({"a": entry(dtype=["F32"])}),
    "negative": file_with({"a": entry(-8, 0)}),
    "negative shape": file_with({"a": entry(shape=[-1, -2])}),
    "fraction": file_with({"a": entry(0.0, 8)}),
    "truth as number": file_with({"a": entry(shape=[True, 2])}),
    "overflow": file_with({"a": entry(shape=[2**62, 2**62])}),
    "empty, but too large to count": file_with({"a": entry(0, 0, [0, 2**62, 2**62])}, b""),
    "overlap": file_with({"a": entry(), "b": entry(4, 12)}, b"\0" * 12),
    "twice the same": file_with({"a": entry(), "b": entry()}),
    "gap": file_with({"a": entry(), "b": entry(12, 20)}, b"\0" * 20),
    "wrong length": file_with({"a": entry(0, 8, [3])}),
    "past the end": file_with({"a": entry(0, 80, [20])}),
    "more than tensors": file_with({"a": entry()}, b"\0" * 9),
    "three offsets": file_with({"a": {**entry(), "data_offsets": [0, 4, 8]}}),
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_damaged(raw: bytes) -> None:
    with pytest.raises(Damaged):
        read(raw)


def test_the_hostile_file_is_fine_without_its_fault() -> None:
    assert same_tensor(read(file_with({"a": entry()}))["a"], torch.zeros(2))
