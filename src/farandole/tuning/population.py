"""Population-based training: members train side by side, and worse ones go on from better ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.arguments import check_integer
from farandole.errors import InputError
from farandole.tuning.search import Proposal
from farandole.tuning.space import Float, Int, Space, suggest

if TYPE_CHECKING:
    from optuna import Study


@dataclass(frozen=True, kw_only=True)
class Population:
    """A sampler for `tune`: so many members, each trained for some epochs at a time.

    A trial is one such part of a member's training. After each, a member that is among the worst
    goes on from the weights and arguments of one of the best, with arguments that are changed a
    little. Arguments of the network itself stay with its weights; the optimizer begins anew with
    each part.

    Args:
        size: how many members there are.
        quantile: the share of members that count as the worst, and as the best.
        factors: what a number may be multiplied with.
        resample: how likely an argument is drawn anew instead.

    >>> Population(size=6).size
    6
    """

    size: int = 8
    quantile: float = 0.25
    factors: tuple[float, float] = (0.8, 1.25)
    resample: float = 0.25

    def check(self) -> None:
        """Raise for the first field that is invalid."""
        check_integer("size", self.size, least=2)
        if not 0 < self.quantile <= 0.5:
            raise InputError(
                f"quantile must be above 0 and at most 0.5. Received: {self.quantile!r}"
            )
        if not 0 <= self.resample <= 1:
            raise InputError(f"resample must be from 0 to 1. Received: {self.resample!r}")


@dataclass(eq=False)
class _Member:
    params: dict[str, Any]
    """As Optuna stores them."""
    number: int | None = None
    """The trial that runs now."""
    parts: int = 0
    score: float | None = None
    weights: Mapping[str, Any] | None = None


class PopulationTrials:
    """Proposes the next part of a member's training."""

    keeps_networks = True

    def __init__(
        self,
        study: Study,
        space: Space,
        population: Population,
        *,
        maximize: bool,
        fixed: frozenset[str],
        seed: int,
    ) -> None:
        population.check()
        if callable(space):
            raise InputError(
                "A population needs a space that is a dict, not a function of a trial."
            )
        self._study = study
        self._space = space
        self._population = population
        self._sign = 1.0 if maximize else -1.0
        self._fixed = fixed
        """Arguments of the network: they can't change without its weights."""
        self._random = np.random.default_rng(seed % (1 << 64))
        self._members = [_Member({}) for _ in range(population.size)]

    def propose(self) -> Proposal | None:
        """The next part of the idle member that has had the fewest."""
        idle = [member for member in self._members if member.number is None]
        if not idle:
            return None
        member = min(idle, key=lambda one: one.parts)
        source = self._better_than(member)
        if source is not None:
            member.params, member.weights = self._changed(source.params), source.weights
        if member.parts:
            self._study.enqueue_trial(member.params)
        trial = self._study.ask()
        arguments = suggest(self._space, trial)
        member.params, member.number = dict(trial.params), trial.number
        trial.set_user_attr("member", self._members.index(member))
        trial.set_user_attr("part", member.parts)
        if source is not None:
            trial.set_user_attr("from_member", self._members.index(source))
        return Proposal(trial=trial, arguments=arguments, initial=member.weights)

    def observe(self, number: int, value: float | None, network: Any) -> None:
        """A part has ended; one that failed leaves its member as bad as can be."""
        member = next((one for one in self._members if one.number == number), None)
        if member is None:
            return
        member.number, member.parts = None, member.parts + 1
        member.score = -np.inf if value is None else self._sign * value
        if network is not None:
            member.weights = network.network.state_dict()

    def _better_than(self, member: _Member) -> _Member | None:
        """Whom a member is to follow, if it is among the worst."""
        known = [one for one in self._members if one.score is not None]
        few = max(1, round(self._population.quantile * len(self._members)))
        if member.score is None or len(known) < 2 * few:
            return None
        known.sort(key=lambda one: one.score or 0.0, reverse=True)
        best = [one for one in known[:few] if one.weights is not None]
        if member not in known[-few:] or not best:
            return None
        return best[int(self._random.integers(len(best)))]

    def _changed(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """A member's parameters, a little different; those left out are drawn anew."""
        changed = dict(params)
        assert isinstance(self._space, Mapping)
        for name, one in self._space.items():
            if name in self._fixed or name not in changed:
                continue
            if self._random.random() < self._population.resample:
                del changed[name]
            elif isinstance(one, Float | Int) and one.step in (None, 1):
                factor = self._random.choice(self._population.factors)
                moved = float(np.clip(changed[name] * factor, one.low, one.high))
                changed[name] = round(moved) if isinstance(one, Int) else moved
        return changed
