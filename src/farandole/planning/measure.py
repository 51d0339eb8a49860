"""Measuring: one step of a network, layer by layer, in seconds or in operations.

The clock is the machine's. Or it counts floating-point operations, on tensors without values, where
the seconds of a step are given.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from farandole.errors import InputError
from farandole.parallel import PowerSGD
from farandole.planning.layer_timings import LayerTimings, parameters_by_module, time_layers
from farandole.planning.profile import Layer, Profile

_WARM_UPS, _REPEATS = 2, 5


def measure(network: nn.Module, arguments: Sequence[Any], rows: int) -> Profile:
    """The profile of a network on this machine, in one thread.

    Args:
        network: any torch module. It is not changed.
        arguments: what `forward` takes, for some rows.
        rows: how many those are.

    >>> profile = measure(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)),
    ...                   [torch.zeros(16, 8)], rows=16)
    >>> [(layer.name, layer.parameters) for layer in profile.layers], profile.seconds > 0
    ([('0', 36), ('2', 10)], True)
    """
    trial = copy.deepcopy(network).train()
    move = _adam(_trainable(trial))
    with _one_thread(), torch.random.fork_rng(devices=[]):
        passes = [
            time_layers(trial, arguments, time.perf_counter) for _ in range(_WARM_UPS + _REPEATS)
        ][_WARM_UPS:]
        moved = [_seconds(move) for _ in range(_WARM_UPS + _REPEATS)][_WARM_UPS:]
    profiles = [_profile(trial, timings, rows) for timings in passes]
    middle = sorted(profiles, key=lambda profile: profile.seconds)[_REPEATS // 2]
    return replace(middle, optimizer=statistics.median(moved))


def estimate(network: nn.Module, arguments: Sequence[Any], rows: int, seconds: float) -> Profile:
    """The profile of a network that takes so many seconds for a step, elsewhere.

    Each layer gets its share by the operations of matrix products and convolutions. Nothing is
    computed, so a network may be larger than this machine.

    >>> profile = estimate(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 8)),
    ...                    [torch.zeros(16, 8)], rows=16, seconds=1.0)
    >>> [layer.forward for layer in profile.layers], round(profile.seconds, 6)
    ([0.2, 0.2], 1.0)
    """
    from torch.utils.flop_counter import FlopCounterMode

    _trainable(network)
    given = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in arguments]
    is_plain = all(isinstance(value, torch.Tensor) for value in arguments)
    # Rows of different sizes have to be looked at, so there the values have to be real.
    trial = copy.deepcopy(network).to("meta" if is_plain else "cpu").train()
    with FlopCounterMode(display=False) as counter:
        timings = time_layers(trial, given if is_plain else arguments, lambda: _flops(counter))
    profile = _profile(trial, timings, rows)
    if profile.seconds == 0:
        raise InputError("No operations could be counted. Leave step_time out to measure here.")
    return profile.scaled(seconds)


def _flops(counter: Any) -> float:
    return float(counter.get_total_flops())


def _trainable(network: nn.Module) -> list[nn.Parameter]:
    found = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not found:
        raise InputError("The network has no parameters to train, so there is nothing to plan.")
    return found


def _adam(parameters: Sequence[nn.Parameter]) -> Callable[[], None]:
    """One fused step of Adam for all parameters, as training makes it.

    The function, since the first optimizer object of a process imports torch's compiler.
    """
    from torch.optim.adam import adam

    flat, average, squares = torch.zeros(3, sum(parameter.numel() for parameter in parameters))
    gradient, steps = torch.full_like(flat, 0.1), torch.zeros(())
    return partial(
        adam, [flat], [gradient], [average], [squares], [], [steps], fused=True, amsgrad=False,
        beta1=0.9, beta2=0.999, lr=1e-3, weight_decay=0.0, eps=1e-8, maximize=False,
    )  # fmt: skip


def _profile(network: nn.Module, timings: LayerTimings, rows: int) -> Profile:
    """A layer's seconds are those since the layer before it was done."""
    by_module = parameters_by_module(network)
    order = sorted(timings.backward, key=lambda name: -timings.backward[name])
    if timings.forward.keys() >= set(order):  # the clock may stand still: of two, the later one
        order = sorted(order, key=lambda name: list(timings.forward).index(name))
    forward = _differences(timings.forward, timings.start)
    kept = _differences(timings.kept, 0.0)
    backward = _differences(timings.backward, timings.forward_end)
    last_forward = max(timings.forward.values(), default=timings.start)
    last_backward = max(timings.backward.values(), default=timings.forward_end)
    # What comes after the last layer belongs to it; what the first layer needs at the end, too.
    forward[order[-1]] = forward.get(order[-1], 0.0) + timings.forward_end - last_forward
    backward[order[0]] += timings.end - last_backward
    return Profile(
        [
            Layer(
                name,
                sum(p.numel() for p in by_module[name][1]),
                forward.get(name, 0.0),
                backward[name],
                kept.get(name, 0.0),
                timings.output.get(name, 0.0),
                sum(PowerSGD().values_sent(p.shape) for p in by_module[name][1]),
            )
            for name in order
        ],
        rows=rows,
        name=type(network).__name__,
    )


def _differences(timings: dict[str, float], start: float) -> dict[str, float]:
    found = {}
    for name, moment in sorted(timings.items(), key=lambda pair: pair[1]):
        found[name], start = moment - start, moment
    return found


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
