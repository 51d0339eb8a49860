"""Checkpoints of the mini-batch loop: all that it needs to go on from the exact update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from farandole.training import events
from farandole.training.checkpointing import (
    Checkpointer,
    check_same_data,
    every_own_state,
    own_states,
    packed_progress,
    unpacked_progress,
)
from farandole.training.context import Clock, TrainingContext
from farandole.training.early_stopping import BestWeights
from farandole.training.job import LoopState
from farandole.training.random_states import random_states, set_random_states
from farandole.training.schedules import LearningRateScheduler
from farandole.training.state_gathering import gather_trees
from farandole.training.tally import Tally


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far training has come."""

    epoch: int = 0
    """Finished epochs."""
    updates: int = 0
    """Updates since then."""
    seconds: float = 0.0
    """Seconds that these updates took."""


@dataclass(frozen=True)
class Start:
    """Where a loop starts: at the beginning, or where a checkpoint was written."""

    progress: LoopState = field(default_factory=LoopState)
    position: Position = Position()
    ended: bool = False
    """Whether training was over."""
    own: Sequence[Mapping[str, Any]] = ()
    """The states of workers that this one goes on for."""
    device: str = "cpu"

    def enter(self, tally: Tally) -> None:
        """Just before the first update: count what was counted, draw what would be drawn."""
        for state in self.own:
            tally.add_state(state["tally"])
        if self.own:
            set_random_states(self.own[0]["random"], self.device)


class LoopCheckpoints(Checkpointer):
    """Saves and restores the parts that a loop is made of."""

    def __init__(
        self,
        context: TrainingContext,
        optimizer: torch.optim.Optimizer,
        scheduler: LearningRateScheduler,
        best: BestWeights,
        clock: Clock,
    ) -> None:
        super().__init__(context)
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._best = best
        self._clock = clock
        whole = context.job.strategy.is_whole or context.world.size == 1
        named = context.whole_network if whole else context.network
        self._names = {parameter: name for name, parameter in named.named_parameters()}

    def save_loop(
        self,
        progress: LoopState,
        tally: Tally,
        position: Position,
        *,
        ended: bool = False,
        score: float | None = None,
    ) -> None:
        """Save the loop as it stands. All workers have to call this."""
        sync, world = self._context.sync, self._context.world
        parts = gather_trees(sync.optimizer_states(self._optimizer, self._names), world)
        common = {
            "position": asdict(position),
            "progress": packed_progress(progress),
            "ended": ended,
            "weights": sync.gather(self._context.whole_network),
            "kept": self._best.gather(),
            "optimizer": None if parts is None else sync.merge_optimizer_states(parts),
            "param_groups": [_settings(group) for group in self._optimizer.param_groups],
            "scheduler": self._scheduler.state(),
            "stopping": self._best.stopping.state(),
            "spent": self._clock.spent,
        }
        own = {
            "random": random_states(world.device),
            "tally": tally.state(),
            "buffers": dict(self._context.network.named_buffers()) if world.size > 1 else {},
            "strategy": self._strategy_state(),
        }
        self.save(progress.update, common, own, score=score)

    def _strategy_state(self) -> dict[str, Any] | None:
        state = self._context.sync.own_state(self._optimizer, self._names)
        return None if state is None else {"of": repr(self._context.job.strategy), "state": state}

    def restore(self, state: Mapping[str, Any]) -> Start:
        """Put everything in place but the weights, which the network has already."""
        context, world = self._context, self._context.world
        check_same_data(state, context)
        position = Position(**state["position"])
        at, begun = context.recipe.unfreeze_at, position.epoch + (position.updates > 0)
        if at is not None and begun >= at:  # or it is done when that epoch begins
            context.unfreeze()
        self._restore_optimizer(state)
        self._scheduler.load_state(state["scheduler"])
        self._best.stopping.load_state(state["stopping"])
        self._best.scatter(state["kept"])
        self._clock.spent = state["spent"]
        own = own_states(state, world.rank, world.size)
        _restore_buffers(context.network, state, own, same=len(state["workers"]) == world.size)
        self._restore_strategy(state, own)
        progress = unpacked_progress(state["progress"])
        more = context.recipe.epochs > position.epoch and progress.reason == LoopState().reason
        ended = state["ended"] and not more
        self.announce_resumed(state, position.epoch + 1, ended=ended)
        if ended:
            self.warn_if_limits_changed(state, progress.reason)
        return Start(progress, position, ended, own, world.device)

    def _restore_strategy(self, state: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
        """What a strategy keeps on each worker; of another strategy, nothing fits."""
        leaders = every_own_state(state)[0]["strategy"]
        if leaders is None:
            return
        if leaders["of"] != repr(self._context.job.strategy):
            message = (
                f"The checkpoint is of {leaders['of']}: what that kept on each worker between "
                "updates is dropped, weights and optimizer are taken over."
            )
            self._context.emit(events.WarningIssued(message=message))
            return
        states = [one["strategy"]["state"] for one in own]
        self._context.sync.load_own_states(states, leaders["state"], self._optimizer, self._names)

    def _restore_optimizer(self, state: Mapping[str, Any]) -> None:
        sync, optimizer = self._context.sync, self._optimizer
        sync.set_optimizer_states(optimizer, self._names, state["optimizer"])
        for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
            group.update(saved)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _restore_buffers(
    network: nn.Module,
    state: Mapping[str, Any],
    own: Sequence[Mapping[str, Any]],
    *,
    same: bool,
) -> None:
    """Running statistics are a worker's own until the epoch ends; of other workers', the mean."""
    saved = [one["buffers"] for one in (own if same else every_own_state(state))]
    with torch.no_grad():
        for name, buffer in network.named_buffers():
            found = [buffers[name] for buffers in saved if name in buffers]
            if not found:
                continue
            if buffer.is_floating_point() and len(found) > 1:
                buffer.copy_(torch.stack([one.double() for one in found]).mean(0))
            else:
                buffer.copy_(found[0])
