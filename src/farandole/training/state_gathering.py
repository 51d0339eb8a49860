"""The states of all workers, brought to the leader as tensors and JSON: nothing is pickled."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from farandole.checkpoint import flatten, unflatten
from farandole.world import World


def gather_trees(tree: Any, world: World) -> list[Any] | None:
    """The trees of all workers in rank order, on the leader. All workers have to call this.

    A tree is of plain values and tensors, as `checkpoint.flatten` takes it.

    >>> gather_trees({"rank": 0}, World())
    [{'rank': 0}]
    """
    if world.size == 1:
        return [tree]
    packed = torch.empty(0, dtype=torch.uint8) if world.is_leader else pack(tree)
    sizes = torch.zeros(world.size, dtype=torch.int64)
    sizes[world.rank] = len(packed)
    dist.all_reduce(sizes)
    if not world.is_leader:
        dist.send(packed, dst=0)
        return None
    others = []
    for rank, size in enumerate(sizes.tolist()[1:], start=1):
        packed = torch.empty(size, dtype=torch.uint8)
        dist.recv(packed, src=rank)
        others.append(unpack(packed))
    return [tree, *others]


def pack(tree: Any) -> torch.Tensor:
    """A tree as bytes.

    >>> unpack(pack({"mean": torch.tensor([2.5]), "count": 3}))
    {'mean': tensor([2.5000]), 'count': 3}
    """
    document, tensors = flatten(tree)
    cpu = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
    data = save_tensors(cpu, {"document": json.dumps(document)})
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def unpack(packed: torch.Tensor) -> Any:
    """The tree that was packed."""
    data = packed.numpy().tobytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])  # safetensors' format
    return unflatten(json.loads(header["__metadata__"]["document"]), load_tensors(data))
