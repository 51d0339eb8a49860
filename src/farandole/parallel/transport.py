"""Transports: which summation a worker's device and neighbours allow."""

from __future__ import annotations

from farandole.arguments import check_choice
from farandole.errors import InputError
from farandole.parallel.summation import Collective, Summation
from farandole.world import World

_DEVICES = {"shared-memory": "cpu", "gloo": "cpu", "nccl": "cuda"}


def check_transport(name: object) -> None:
    """Raise unless there is a transport of that name.

    >>> check_transport("gloo")
    """
    check_choice("transport", name, ["auto", *_DEVICES])


def choose(name: str, world: World) -> Summation:
    """The summation that a name stands for; all workers have to call this.

    >>> type(choose("auto", World())).__name__
    'Collective'
    """
    check_transport(name)
    device = world.device.split(":")[0]
    if world.size > 1 and _DEVICES.get(name, device) != device:
        raise InputError(
            f"transport={name!r} is for {_DEVICES[name]}, but the workers have {world.device}. "
            'Use transport="auto".'
        )
    if world.size > 1 and device == "cpu" and _wants_shared_memory(name, world):
        return _shared_memory(world) or _other(name, world)
    return Collective(world.size)


def _wants_shared_memory(name: str, world: World) -> bool:
    has_neighbours = len(set(world.addresses)) < world.size
    return name == "shared-memory" or (name == "auto" and has_neighbours)


def _shared_memory(world: World) -> Summation | None:
    from farandole.parallel.shared_memory.neighbours import join

    return join(world)


def _other(name: str, world: World) -> Summation:
    if name == "shared-memory":
        raise InputError(
            "The workers of a host can't share memory here: that takes Unix sockets, and processes "
            'of one user in one network namespace. Use transport="auto", which takes gloo then.'
        )
    return Collective(world.size)
