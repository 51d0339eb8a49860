"""Python objects of all workers. They are signed: only what a worker of this run made is loaded."""

from __future__ import annotations

import hmac
import pickle
import struct
from typing import Any

import torch
import torch.distributed as dist

from farandole.errors import NotAuthentic
from farandole.parallel.long_barrier import long_barrier
from farandole.world import World

_CODE_BYTES = 32
_MOST_BYTES = 4 << 30
"""Of one object: the length comes before there is anything to check."""
_HEADER = struct.Struct("!qq")


def gather_objects(value: Any, world: World) -> list[Any]:
    """The values of all workers, in rank order, on all of them.

    >>> gather_objects("mine", World())
    ['mine']
    """
    if world.size == 1:
        return [value]
    long_barrier(world.size)  # what each has found out about its rows took its time
    number = next(world.gathers)
    parts = _gather_bytes(signed(pickle.dumps(value), world.secret, world.rank, number), world.size)
    return [
        pickle.loads(verified(part, world.secret, rank, number)) for rank, part in enumerate(parts)
    ]


def signed(payload: bytes, secret: bytes, rank: int, number: int) -> bytes:
    """A payload with a code that says whose it is, and the how manieth."""
    assert secret, "a ring of workers has a secret"
    return _code(payload, secret, rank, number) + payload


def verified(data: bytes, secret: bytes, rank: int, number: int) -> bytes:
    """The payload; `NotAuthentic` if it isn't of this rank, of this run, at this place.

    >>> verified(signed(b"payload", b"secret", 1, 0), b"secret", 1, 0)
    b'payload'
    """
    code, payload = data[:_CODE_BYTES], data[_CODE_BYTES:]
    if not hmac.compare_digest(code, _code(payload, secret, rank, number)):
        raise NotAuthentic(
            f"what came from rank {rank} was not signed with the secret of this run, and was not "
            "loaded. Somebody else takes part in the workers' connections, or the workers don't "
            "gather the same objects in the same order."
        )
    return payload


def _code(payload: bytes, secret: bytes, rank: int, number: int) -> bytes:
    code = hmac.new(secret, b"farandole object " + _HEADER.pack(rank, number), "sha256")
    code.update(payload)
    return code.digest()


def _gather_bytes(mine: bytes, size: int) -> list[bytes]:
    lengths = torch.zeros(size, dtype=torch.int64)
    dist.all_gather(list(lengths.split(1)), torch.tensor([len(mine)]))
    longest = int(lengths.max())
    if int(lengths.min()) < 0 or longest > _MOST_BYTES:
        raise NotAuthentic(f"lengths of {lengths.tolist()} bytes can't be those of objects")
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    gathered = torch.empty(size, longest, dtype=torch.uint8)
    dist.all_gather(list(gathered.unbind()), padded)
    return [
        part[:length].numpy().tobytes()
        for part, length in zip(gathered, lengths.tolist(), strict=True)
    ]
