"""Which device a worker computes on: what was asked for, what was granted, what torch sees."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence

from farandole.errors import InputError, LaunchError

_FORM = re.compile(r"auto|cpu|cuda(:\d+)?")


def check_device(device: object) -> None:
    """Raise unless this is a device that one can ask for.

    >>> check_device("gpu")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: device must be "auto", "cpu", "cuda" or "cuda:N". Received:
    device='gpu'
    """
    if not isinstance(device, str) or not _FORM.fullmatch(device):
        raise InputError(
            f'device must be "auto", "cpu", "cuda" or "cuda:N". Received: device={device!r}'
        )


def visible_gpus() -> int:
    """How many GPUs torch can use in this process: the one place that asks it."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_device(
    asked: str,
    granted: Sequence[str] = (),
    local_rank: int = 0,
    local_size: int = 1,
    *,
    cluster: str = "Spark",
) -> str:
    """The device of one worker; raises where it can't have what was asked for.

    Args:
        asked: "auto", "cpu", "cuda" (a GPU of its own for each worker) or "cuda:N".
        granted: The addresses of the GPUs that the cluster gave this task: those are to be used.
        local_rank: Which of the workers of this host it is.
        local_size: How many of them there are.
        cluster: Who granted them.

    >>> choose_device("cpu", granted=["5"])
    'cpu'
    """
    if asked == "cpu":
        return "cpu"
    if granted:
        return _granted_device(asked, granted[0], cluster)
    found = visible_gpus()
    if asked == "auto":
        return f"cuda:{local_rank}" if found >= local_size else "cpu"
    _, _, number = asked.partition(":")
    if (int(number) if number else 0) >= found:
        raise LaunchError(f"device={asked!r}, but {_sight(found)}. {_ADVICE}")
    if local_size > (1 if number else found):
        raise LaunchError(
            f"device={asked!r}, but {local_size} workers are on {socket.gethostname()}, "
            f"{'and the device is one' if number else f'where torch sees {found} GPUs'}: each "
            f'needs a GPU of its own. Use fewer workers, or device="cpu".'
        )
    return f"cuda:{number or local_rank}"


def idle_gpus(asked: str, device: str) -> str | None:
    """What to tell of GPUs that "auto" leaves alone, because not every worker could have one."""
    found = visible_gpus() if (asked, device) == ("auto", "cpu") else 0
    if not found:
        return None
    return (
        f"{socket.gethostname()} has {found} GPUs, too few for one a worker, so the CPU is used: "
        'run fewer workers there, or set device="cpu" to be told no more.'
    )


def check_own_device(devices: Mapping[int, str]) -> None:
    """Raise if two workers of one host, by rank, have the same GPU: nccl can't bring them together.

    >>> check_own_device({0: "cpu", 1: "cpu"})
    """
    owners: dict[str, int] = {}
    for rank, device in devices.items():
        if device != "cpu" and device in owners:
            raise LaunchError(
                f"Ranks {owners[device]} and {rank} on {socket.gethostname()} were both given "
                f"{device}, but each worker needs a GPU of its own: set "
                'spark.task.resource.gpu.amount to 1 (or leave it out), or use device="cpu".'
            )
        owners[device] = rank


_ADVICE = 'Install a torch with CUDA on the workers, or set device="cpu".'


def _granted_device(asked: str, address: str, cluster: str) -> str:
    found = visible_gpus()
    if asked.startswith("cuda:") and asked != f"cuda:{address}":
        raise LaunchError(
            f"device={asked!r}, but {cluster} granted GPU {address} on {socket.gethostname()}: "
            'device="cuda" uses what was granted.'
        )
    if not found:
        raise LaunchError(f"{cluster} granted GPU {address}, but {_sight(found)}. {_ADVICE}")
    if not address.isdigit() or int(address) >= found:
        raise LaunchError(
            f"{cluster} granted GPU {address}, but {_sight(found)}, numbered from 0: let the "
            'discovery script give those numbers (see CUDA_VISIBLE_DEVICES), or set device="cpu".'
        )
    return f"cuda:{address}"


def _sight(found: int) -> str:
    if not found:
        return f"torch.cuda.is_available() is False on {socket.gethostname()}"
    return f"torch sees {found} GPUs on {socket.gethostname()}"
