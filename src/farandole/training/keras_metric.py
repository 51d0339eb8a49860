"""Keras metrics, with their states added up over workers, of which some may have no rows."""

from __future__ import annotations

from typing import Any

import torch

from farandole.keras_models import KerasMetric
from farandole.parallel import gather_objects
from farandole.world import World


class KerasMetricTally:
    """What a Keras metric has counted of one head on this worker."""

    def __init__(self, metric: KerasMetric) -> None:
        self._described = metric
        self._made: Any = None

    def update(
        self, output: torch.Tensor, target: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """Count a batch; weights count for those that Keras calls weighted metrics only."""
        metric = self._metric(output, target)
        with torch.no_grad():
            if self._described.is_weighted and weights is not None:
                metric.update_state(target, output, sample_weight=weights.to(output.dtype))
            else:
                metric.update_state(target, output)

    def state(self) -> dict[str, Any]:
        """The variables, and what kind of metric they are of: that depends on labels."""
        if self._made is None:
            return {}
        shapes = {"output": self._shapes[0], "target": self._shapes[1]}
        return {**shapes, "variables": [one.value.detach() for one in self._made.variables]}

    def add_state(self, state: dict[str, Any]) -> None:
        """Count what another one has counted."""
        if not state:
            return
        metric = self._metric(torch.empty(state["output"]), torch.empty(state["target"]))
        with torch.no_grad():
            for variable, more in zip(metric.variables, state["variables"], strict=True):
                variable.assign(variable.value + more.to(variable.value.device))

    def value(self, world: World) -> torch.Tensor:
        """The metric over all workers: their variables add up."""
        total = self
        if world.size > 1:
            total = KerasMetricTally(self._described)
            for state in gather_objects(_on_cpu(self.state()), world):
                total.add_state(state)
        if total._made is None:
            return torch.tensor(float("nan"))
        found: torch.Tensor = torch.as_tensor(total._made.result()).detach().cpu()
        return found

    def _metric(self, output: torch.Tensor, target: torch.Tensor) -> Any:
        if self._made is None:
            self._made = self._described.made(output, target)
            self._shapes = (0, *output.shape[1:]), (0, *target.shape[1:])
            self._build(output, target)
        return self._made

    def _build(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Some metrics have no variables before they see a row: let them see one, and forget."""
        if self._made.variables:
            return
        ones = torch.ones((1, *output.shape[1:]), dtype=torch.float32)
        self._made.update_state(torch.zeros((1, *target.shape[1:]), dtype=target.dtype), ones)
        self._made.reset_state()


def _on_cpu(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "variables": [one.cpu() for one in state["variables"]]} if state else {}
