"""Costs of pipelines: the actions of each stage, as soon as what they need is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from farandole.parallel import Action, balance_stages, pipeline_schedule
from farandole.planning import constants, memory
from farandole.planning.cluster import Cluster, straggler_factor
from farandole.planning.profile import Layer, Layers, Profile
from farandole.planning.scenario import Scenario, StepCost
from farandole.planning.simulate import ring_collective


def pipeline(scenario: Scenario, kind: str, micro_batches: int | None = None) -> StepCost | None:
    """A stage of layers on each worker; micro-batches follow each other through them."""
    if scenario.workers == 1 or scenario.workers > len(scenario.profile.layers):
        return None
    count = micro_batches or micro_batches_of(scenario, scenario.workers)
    if kind == "1f1b" and count < scenario.workers:
        return None
    return _pipeline_cost(scenario, stages_of(scenario.profile, scenario.workers), kind, count)


def micro_batches_of(scenario: Scenario, stages: int) -> int:
    """As many as were asked for, or some for each stage."""
    return scenario.micro_batches or constants.MICRO_BATCHES * stages


def stages_of_hybrid(scenario: Scenario) -> int:
    """The workers of a host, or a few."""
    return scenario.cluster.per_host if scenario.cluster.per_host > 1 else 4


def _pipeline_cost(scenario: Scenario, stages: list[Stage], kind: str, count: int) -> StepCost:
    share = len(stages) / count
    straggler = straggler_factor(len(stages), scenario.cluster.jitter)
    cluster = scenario.cluster
    seconds = (
        pipeline_seconds(stages, cluster, micro_batches=count, share=share, kind=kind) * straggler
    )
    most = max(stage.parameters for stage in stages)
    seconds += scenario.profile.optimizer * most / scenario.profile.parameters
    # A stage sends its outputs forward, and gradients of the same size back.
    ends = [0.0, *(stage.output for stage in stages[:-1]), 0.0]
    sent = max(before + after for before, after in pairwise(ends))
    whole = memory.widths(scenario.precision).whole
    held = [
        stage.parameters * whole
        + stage.kept * share * (count if kind == "gpipe" else min(count, len(stages) - place))
        for place, stage in enumerate(stages)
    ]
    return StepCost(seconds, sent * len(stages), max(held))


def hybrid(scenario: Scenario) -> StepCost | None:
    """Pipelines side by side: a few stages each, as near to each other as can be."""
    count = stages_of_hybrid(scenario)
    replicas, micro_batches = scenario.workers // count, micro_batches_of(scenario, count)
    is_too_short = count > len(scenario.profile.layers) or micro_batches < count
    if scenario.workers % count or replicas < 2 or is_too_short:
        return None
    stages = stages_of(scenario.profile, count)
    one = _pipeline_cost(scenario, stages, "1f1b", micro_batches)
    straggler = scenario.straggler / straggler_factor(count, scenario.cluster.jitter)
    # One ring for each stage, all at the same time: the rings of a host share its link.
    shared = min(count, scenario.cluster.per_host)
    lane = replace(scenario.cluster, bandwidth=scenario.cluster.bandwidth / shared, per_host=1)
    by = ring_collective(replicas, lane)
    nbytes = max(stage.parameters for stage in stages) * scenario.width
    return StepCost(
        one.seconds * straggler + by.whole(nbytes), one.sent + by.sent * nbytes, one.memory
    )


@dataclass(frozen=True)
class Stage(Layers):
    """Layers that one worker has."""

    layers: Sequence[Layer]

    @property
    def output(self) -> float:
        """Bytes that go to the next stage, for the rows of the profile."""
        return self.layers[-1].output


def stages_of(profile: Profile, count: int) -> list[Stage]:
    """Split a network into stages as a `Pipeline` does.

    >>> profile = Profile([Layer(name, 1, 1.0, 1.0) for name in "abcd"])
    >>> [len(stage.layers) for stage in stages_of(profile, 2)]
    [2, 2]
    """
    layers = list(profile.layers)
    costs = tuple(layer.forward + layer.backward for layer in layers)
    return [Stage(layers[start:end]) for start, end in _bounds(costs, count)]


@lru_cache(maxsize=64)
def _bounds(costs: tuple[float, ...], count: int) -> list[tuple[int, int]]:
    """The split that `Pipeline` would choose; several strategies ask for the same one."""
    starts = balance_stages(costs, [True] * len(costs), count)
    return list(pairwise([*starts, len(costs)]))


def pipeline_seconds(
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
    links = _StageLinks(stages, cluster, share)
    clocks, places = [0.0] * count, [0] * count
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        for stage, order in enumerate(orders):
            while places[stage] < len(order):
                action = order[places[stage]]
                before = pipeline_schedule.needs(stage, count, action)
                if any(need not in done for need in before):
                    break
                arrivals = [links.arrival(*need, stage, done[need]) for need in before]
                one = (
                    stages[stage].forward
                    if action.kind == pipeline_schedule.FORWARD
                    else stages[stage].backward
                )
                clocks[stage] = max(clocks[stage], *arrivals, 0.0) + one * share
                done[stage, action] = clocks[stage]
                places[stage] += 1
    return max(clocks)


class _StageLinks:
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
