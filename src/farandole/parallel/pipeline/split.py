"""Split: at which layers the stages of a pipeline begin."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from farandole.errors import InputError, suggestion
from farandole.parallel.pipeline.chain import Layer


def balanced(costs: Sequence[float], learns: Sequence[bool], stages: int) -> list[int]:
    """Where each stage begins, so that the slowest one is as fast as can be.

    Every stage gets something that learns.

    Args:
        costs: of each layer.
        learns: whether a layer has anything to learn.
        stages: how many.

    >>> balanced([1, 1, 1, 1, 4], [True] * 5, stages=2)
    [0, 4]
    >>> balanced([1, 1, 1, 1, 4], [True, False, False, True, True], stages=3)
    [0, 2, 4]
    """
    count = len(costs)
    spent, learned = [0.0, *accumulate(costs)], [0, *accumulate(map(int, learns))]
    # worst[end]: of the first `end` layers in so many stages, the cost of the slowest one.
    worst = [0.0] + [float("inf")] * count
    cuts: list[list[int]] = []
    for _ in range(stages):
        previous, worst, chosen = worst, [float("inf")] * (count + 1), [0] * (count + 1)
        for end in range(1, count + 1):
            for start in range(end):
                if learned[end] > learned[start]:
                    cost = max(previous[start], spent[end] - spent[start])
                    if cost < worst[end]:
                        worst[end], chosen[end] = cost, start
        cuts.append(chosen)
    return _traced(cuts, count)


def at_names(layers: Sequence[Layer], names: Sequence[str]) -> list[int]:
    """Where each stage begins: the first at the first layer, the others at those of these names.

    The name of a group of layers stands for its first.

    >>> from torch import nn
    >>> at_names([Layer("0", nn.ReLU()), Layer("1.0", nn.ReLU()), Layer("1.1", nn.ReLU())], ["1"])
    [0, 1]
    """
    known = [layer.name for layer in layers]
    starts = [0]
    for name in names:
        found = [n for n, one in enumerate(known) if one == name or one.startswith(f"{name}.")]
        if not found:
            raise InputError(f"split_at: there is no layer {name!r}. {suggestion(name, known)}")
        starts.append(found[0])
    if any(after <= before for before, after in pairwise(starts)):
        raise InputError(
            "split_at must name layers in the order of the network, each once and none of them "
            f"the first, {known[0]!r}. Received: split_at={list(names)!r}"
        )
    return starts


def check_stages(layers: Sequence[Layer], starts: Sequence[int]) -> None:
    """Raise for a stage without anything that learns."""
    for start, end in pairwise([*starts, len(layers)]):
        part = layers[start:end]
        if not any(layer.learns for layer in part):
            raise InputError(
                f"The stage from {part[0].name!r} to {part[-1].name!r} has no parameters to train. "
                "Split at other layers, freeze fewer of them, or use fewer stages."
            )


def check_enough(layers: Sequence[Layer], stages: int) -> None:
    """Raise for more stages than layers that learn."""
    count = sum(layer.learns for layer in layers)
    if count < stages:
        raise InputError(
            f"{count} of the network's {len(layers)} layers have parameters to train: too few for "
            f"{stages} stages. Use at most {max(count, 1)} workers in a pipeline, or another "
            "strategy."
        )


def _traced(cuts: Sequence[Sequence[int]], count: int) -> list[int]:
    starts, end = [], count
    for chosen in reversed(cuts):
        end = chosen[end]
        starts.append(end)
    return starts[::-1]
