"""A value as bytes: a pickle, and apart from it, uncopied, the memory of tensors and arrays.

Torch by itself writes every tensor to a file in memory and copies that twice, so a large network
would need four times its size on the way. Apart from the pickle, it can also be sent in parts.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

Buffer = bytes | bytearray | memoryview
_PART_BYTES = 16 << 20


class Pickled:
    """A value as bytes; what it holds on to may not change while they are sent.

    >>> Pickled.of({"a": [1, 2]}).load()
    {'a': [1, 2]}
    """

    def __init__(self, head: Buffer, buffers: Sequence[Buffer]) -> None:
        self._pieces: list[Buffer] = [head, *buffers]

    @classmethod
    def of(cls, value: object) -> Pickled:
        """Pickle a value, also what a notebook or `__main__` defines."""
        found: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        _Pickler(file, protocol=5, buffer_callback=found.append).dump(value)
        return cls(file.getbuffer(), [buffer.raw() for buffer in found])

    def __reduce__(self) -> tuple[Any, ...]:
        head, *buffers = self._pieces  # arrays over bytes could not be written to
        return Pickled, (bytes(head), [bytearray(buffer) for buffer in buffers])

    @property
    def sizes(self) -> list[int]:
        """The bytes of each piece."""
        return [len(piece) for piece in self._pieces]

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return sum(self.sizes)

    def load(self) -> Any:
        """The value. It takes the memory over, so it can be had once."""
        pieces, self._pieces = self._pieces, []
        assert pieces, "it has been loaded before"
        return pickle.loads(pieces[0], buffers=pieces[1:])

    def to_bytes(self) -> bytes:
        """All of it in one piece, as a copy."""
        return pickle.dumps(self, protocol=5)

    @staticmethod
    def from_bytes(data: bytes) -> Pickled:
        """The inverse of `to_bytes`."""
        pickled = pickle.loads(data)
        assert isinstance(pickled, Pickled)
        return pickled

    def parts(self) -> Iterator[Part]:
        """All bytes, some megabytes at a time."""
        for piece, content in enumerate(self._pieces):
            view = memoryview(content)
            for start in range(0, len(view), _PART_BYTES):
                yield Part(piece, start, view[start : start + _PART_BYTES])


@dataclass(frozen=True)
class Part:
    """Some bytes of a piece; they are copied only when they leave."""

    piece: int
    start: int
    content: Buffer

    def __reduce__(self) -> tuple[Any, ...]:
        return Part, (self.piece, self.start, bytes(self.content))


class Assembly:
    """The parts of a `Pickled` on their arrival."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._pieces = [bytearray(size) for size in sizes]
        self._missing = sum(sizes)

    def add(self, part: Part) -> None:
        """Put a part in its place; each comes once."""
        end = part.start + len(part.content)
        self._pieces[part.piece][part.start : end] = part.content
        self._missing -= len(part.content)

    @property
    def is_complete(self) -> bool:
        """Whether all parts are there."""
        return self._missing == 0

    def pickled(self) -> Pickled:
        """What they make together."""
        assert self.is_complete
        head, *buffers = self._pieces
        return Pickled(head, buffers)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves the memory of plain tensors where it is; any other tensor is torch's to pickle."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and _is_plain(value):
            # One value may have any stride, and be contiguous for torch all the same.
            flat = value.detach().as_strided((value.numel(),), (1,))
            memory: Any = flat.view(torch.uint8).numpy()
            shape, flags = tuple(value.shape), value.requires_grad
            return _tensor, (pickle.PickleBuffer(memory), value.dtype, shape, flags)
        return super().reducer_override(value)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and tensor.is_contiguous()
        and tensor.is_leaf
        and not tensor.is_complex()
        and not tensor.is_quantized
        and not tensor.is_neg()
        and not tensor._backward_hooks
        and not tensor.__dict__
    )


def _tensor(
    memory: Any, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    """A tensor over memory that is its own."""
    flat = torch.frombuffer(memory, dtype=torch.uint8).view(dtype)
    return flat.reshape(shape).requires_grad_(requires_grad)
