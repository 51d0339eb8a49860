"""Tensors ↔ a safetensors file, one tensor at a time.

safetensors' own `save_file` writes no stream (none that could be summed, or sent to an object
store), and refuses tensors that share memory or have gaps. The format is simple: eight bytes with
the length of a header, the header as JSON, and the bytes of all tensors, without a gap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from farandole.checkpoint.store import Damaged, Stream
from farandole.errors import CheckpointError

HEADER_LIMIT = 16 * 2**20
CHUNK = 8 * 2**20

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class TensorFile:
    """Tensors on their way into a file.

    >>> file = TensorFile({"weight": torch.ones(2)})
    >>> file.size == sum(len(chunk) for chunk in file.chunks())
    True
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            _check(name, tensor)
        # The widest first, so that each tensor begins where its dtype may.
        self._tensors = sorted(tensors.items(), key=lambda item: -item[1].element_size())
        self._header = _header(tensors, self._tensors)
        self.size = len(self._header) + sum(_length(tensor) for tensor in tensors.values())

    def chunks(self) -> Iterator[memoryview]:
        """The file's bytes. A tensor is copied only if it has gaps or is on another device."""
        yield memoryview(self._header)
        for _, tensor in self._tensors:
            view = _bytes_of(tensor.detach().cpu().resolve_conj().resolve_neg().contiguous())
            for start in range(0, len(view), CHUNK):
                yield view[start : start + CHUNK]


def read_tensors(stream: Stream, size: int) -> dict[str, torch.Tensor]:
    """Read a file of so many bytes, in the order in which its tensors were given."""
    length = int.from_bytes(read_bytes(stream, 8), "little")
    if length > min(HEADER_LIMIT, size - 8):
        raise Damaged(f"has a header of {length:,} bytes")
    entries = _entries(read_bytes(stream, length), size - 8 - length)
    tensors = {entry.name: torch.empty(entry.shape, dtype=entry.dtype) for entry in entries}
    for entry in sorted(entries, key=lambda entry: entry.begin):
        fill(stream, _bytes_of(tensors[entry.name]))
    return tensors


def read_bytes(stream: Stream, size: int) -> bytes:
    """Read exactly so many bytes."""
    content = bytearray(size)
    fill(stream, memoryview(content))
    return bytes(content)


def fill(stream: Stream, view: memoryview) -> None:
    """Read exactly as many bytes as the view has room for."""
    while view:
        count = stream.readinto(view[:CHUNK])
        if not count:
            raise Damaged("ends too early")
        view = view[count:]


def _check(name: Any, tensor: Any) -> None:
    if not isinstance(name, str) or name == "__metadata__" or not name.isprintable():
        raise CheckpointError(
            f"Names of tensors must be texts that can be printed, and not '__metadata__', which "
            f"safetensors keeps for itself. Received: {name!r}"
        )
    if not isinstance(tensor, torch.Tensor):
        raise CheckpointError(f"tensors[{name!r}] must be a tensor. Received: {type(tensor)}")
    if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in _NAMES:
        raise CheckpointError(
            f"tensors[{name!r}] must be a dense tensor of a dtype that safetensors knows. "
            f"Received: {tensor.dtype}, {tensor.layout}, device {tensor.device}"
        )


def _header(given: Mapping[str, torch.Tensor], stored: list[tuple[str, torch.Tensor]]) -> bytes:
    """Names in the order in which they were given, places in the order of the file."""
    begins, end = {}, 0
    for name, tensor in stored:
        begins[name], end = end, end + _length(tensor)
    entries = {
        name: {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begins[name], begins[name] + _length(tensor)],
        }
        for name, tensor in given.items()
    }
    text = json.dumps(entries, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise CheckpointError(f"{len(given):,} tensors are too many for one checkpoint.")
    return len(text).to_bytes(8, "little") + text.encode("ascii")


class _Entry(NamedTuple):
    """One tensor of a header, checked."""

    name: str
    dtype: torch.dtype
    shape: list[int]
    begin: int
    end: int


def _entries(header: bytes, size: int) -> list[_Entry]:
    """What a header says, if its tensors fill the rest of the file without gap or overlap."""
    try:
        found = json.loads(header)
        found.pop("__metadata__", None)
        entries = [_entry(name, about) for name, about in found.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(f"has a header that can't be read ({error})") from error
    position = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        length = math.prod(entry.shape) * entry.dtype.itemsize
        if entry.begin != position or entry.end - entry.begin != length:
            raise Damaged(f"has tensors that overlap, or don't have their size ({entry.name!r})")
        position = entry.end
    if position != size:
        raise Damaged(f"has {size:,} bytes of tensors, where its header tells of {position:,}")
    return entries


def _entry(name: str, about: Any) -> _Entry:
    begin, end = about["data_offsets"]
    shape = list(about["shape"])
    for number in (begin, end, *shape):
        if type(number) is not int or not 0 <= number < 2**63:
            raise ValueError(f"{name!r} has {number!r}")
    if math.prod(max(number, 1) for number in shape) >= 2**60:  # more than torch can count
        raise ValueError(f"{name!r} has the shape {shape}")
    return _Entry(name, _DTYPES[about["dtype"]], shape, begin, end)


def _length(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a tensor that has no gaps, to read or to fill."""
    if tensor.numel() == 0:
        return memoryview(b"")
    memory: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(memory)
