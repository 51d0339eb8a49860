"""Pipelines: the actions of each stage, in their order, as soon as what they need is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farandole.parallel import Action, pipeline_schedule
from farandole.planning.cluster import Cluster
from farandole.planning.profile import Layer, Layers, Profile, balanced


@dataclass(frozen=True)
class Stage(Layers):
    """Layers that one worker has."""

    layers: Sequence[Layer]

    @property
    def output(self) -> float:
        """Bytes that go to the next stage, for the rows of the profile."""
        return self.layers[-1].output


def stages_of(profile: Profile, count: int) -> list[Stage]:
    """Part a network into stages that take about as long as each other.

    >>> profile = Profile([Layer(name, 1, 1.0, 1.0) for name in "abcd"])
    >>> [len(stage.layers) for stage in stages_of(profile, 2)]
    [2, 2]
    """
    layers = list(profile.layers)
    costs = [layer.forward + layer.backward for layer in layers]
    return [Stage(layers[start:end]) for start, end in balanced(costs, count)]


def piped(
    stages: Sequence[Stage],
    cluster: Cluster,
    *,
    micro_batches: int,
    share: float,
    kind: str = "gpipe",
) -> float:
    """Seconds until the last stage has done its last action.

    Args:
        stages: one a worker, neighbours next to each other.
        cluster: what carries activations and their gradients; a link serves one after the other.
        micro_batches: how many there are in a step.
        share: rows of a micro-batch, as a share of the profile's rows.
        kind: "gpipe" or "1f1b".
    """
    count = len(stages)
    orders = pipeline_schedule.pipeline(count, micro_batches, kind)
    done: dict[tuple[int, Action], float] = {}
    line = _Line(stages, cluster, share)
    clocks, places = [0.0] * count, [0] * count
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        for stage, order in enumerate(orders):
            while places[stage] < len(order):
                action = order[places[stage]]
                before = pipeline_schedule.needs(stage, count, action)
                if any(need not in done for need in before):
                    break
                arrivals = [line.arrival(*need, stage, done[need]) for need in before]
                one = (
                    stages[stage].forward
                    if action.kind == pipeline_schedule.FORWARD
                    else stages[stage].backward
                )
                clocks[stage] = max(clocks[stage], *arrivals, 0.0) + one * share
                done[stage, action] = clocks[stage]
                places[stage] += 1
    return max(clocks)


class _Line:
    """The links between stages, each of which serves one after the other."""

    def __init__(self, stages: Sequence[Stage], cluster: Cluster, share: float) -> None:
        self._stages, self._cluster, self._share = stages, cluster, share
        self._free: dict[tuple[int, int], float] = {}

    def arrival(self, source: int, action: Action, target: int, ready: float) -> float:
        """When what a stage has made is at another."""
        if source == target:
            return ready
        nbytes = self._stages[min(source, target)].output * self._share
        cluster, link = self._cluster, (source, target)
        near = source // cluster.per_host == target // cluster.per_host
        latency = cluster.local_latency if near else cluster.latency
        speed = cluster.local_bandwidth if near else cluster.usable
        self._free[link] = max(self._free.get(link, 0.0), ready) + nbytes / speed
        return self._free[link] + latency
