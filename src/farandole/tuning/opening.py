"""Opening: how a study begins, or goes on: its sampler and pruner, its grid, its trials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farandole.arguments import check_flag, check_integer, check_positive
from farandole.errors import InputError
from farandole.tuning.objective import TRAIN_OPTIONS
from farandole.tuning.population import Population, PopulationTrials
from farandole.tuning.problem import Problem
from farandole.tuning.samplers import make_pruner, make_sampler
from farandole.tuning.search import Proposer, SampledTrials
from farandole.tuning.space import grid_of, names_of, params_of
from farandole.tuning.storage import (
    DEFAULT_JOURNAL,
    ended_trials,
    open_storage,
    open_study,
    planned_params,
    queue_lost_trials,
)

if TYPE_CHECKING:
    import optuna

_ENDLESS = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What a study is opened with."""

    problem: Problem
    trials: int
    sampler: Any
    pruner: Any
    grid: list[dict[str, Any]]
    """All combinations, where all are tried."""
    population: Population | None
    folds: int | None
    seed: int

    @classmethod
    def of(
        cls,
        problem: Problem,
        sampler: Any,
        pruner: Any,
        trials: int | None,
        max_time: float | None,
        folds: int | None,
        seed: int,
    ) -> Opening:
        """Of what the user gave; raises for what doesn't go together."""
        population = sampler if isinstance(sampler, Population) else None
        if sampler == "population":
            population = Population()
        grid = _grid(problem, sampler)
        training = problem.training
        epochs = None if training is None else training.options.get("epochs")
        chosen = make_pruner(pruner, epochs)
        make_sampler("population" if population or isinstance(sampler, list) else sampler, seed)
        if max_time is not None:
            check_positive("max_time", max_time)
        if len(problem.metrics) > 1 and type(chosen).__name__ != "NopPruner":
            raise InputError("Trials with several metrics can't be pruned: pruner='none'.")
        if population is not None:
            _check_population(problem, chosen, folds)
        return cls(
            problem=problem,
            trials=_count(trials, max_time, grid),
            sampler="grid" if grid else "population" if population else sampler,
            pruner=chosen,
            grid=grid,
            population=population,
            folds=folds,
            seed=seed,
        )

    def study(
        self, name: str | None, storage: str | os.PathLike[str] | Any, *, resume: bool
    ) -> optuna.Study:
        """The study, as its storage has it."""
        check_flag("resume", resume)
        if name is None and (storage is not None or resume):
            raise InputError("A study that is kept, or gone on with, has a name: name='digits'.")
        if name is not None and self.population is not None:
            raise InputError(
                "A population keeps its weights in memory, so it can't be gone on with later: "
                "leave name out."
            )
        kept = None if name is None else open_storage(storage or DEFAULT_JOURNAL)
        study = open_study(
            kept,
            name,
            resume=resume,
            directions=self.problem.directions,
            described=self.problem.described(self.folds),
            sampler=make_sampler(self.sampler, self.seed),
            pruner=self.pruner,
        )
        before = study.get_trials(deepcopy=False)
        if before and isinstance(self.sampler, str):  # the same numbers would give the same trials
            study.sampler = make_sampler(self.sampler, self.seed + len(before))
        return study

    def plan(self, study: optuna.Study) -> tuple[int, int]:
        """Queue what is known beforehand; gives how many trials have ended, and will have."""
        queue_lost_trials(study)
        self._queue_grid(study)
        done = count_ended(study)
        return done, self._total(study, done)

    def _queue_grid(self, study: optuna.Study) -> None:
        """Queue the combinations that no trial has yet."""
        known = [planned_params(trial) for trial in study.get_trials(deepcopy=False)]
        for params in self.grid[: self.trials]:
            if params in known:
                known.remove(params)
            else:
                study.enqueue_trial(params)

    def _total(self, study: optuna.Study, done: int) -> int:
        """How many trials there will be: of a grid, those that are queued."""
        from optuna.trial import TrialState

        waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        return done + len(waiting) if self.grid else self.trials

    def proposer(self, study: optuna.Study) -> Proposer:
        """Who decides what is tried next."""
        space = self.problem.space
        if self.population is None:
            return SampledTrials(study, space)
        training = self.problem.training
        renamed = {} if training is None else training.names
        names = names_of(space) or ()
        fixed = frozenset(name for name in names if renamed.get(name, name) not in TRAIN_OPTIONS)
        return PopulationTrials(
            study,
            space,
            self.population,
            maximize=self.problem.directions[0] == "maximize",
            fixed=fixed,
            seed=self.seed,
        )


def _grid(problem: Problem, sampler: Any) -> list[dict[str, Any]]:
    """All combinations, or those that are listed, as Optuna's parameters."""
    if isinstance(sampler, list):
        if not sampler or not all(isinstance(one, Mapping) for one in sampler):
            raise InputError("A list in place of a sampler has dicts: the arguments of each trial.")
        return [params_of(problem.space, one) for one in sampler]
    return grid_of(problem.space) if isinstance(sampler, str) and sampler == "grid" else []


def count_ended(study: optuna.Study) -> int:
    """How many trials have ended, but for those that died with a driver and run again."""
    return len(ended_trials(study.get_trials(deepcopy=False)))


def _count(trials: int | None, max_time: float | None, grid: list[dict[str, Any]]) -> int:
    if trials is not None:
        check_integer("trials", trials)
        return min(trials, len(grid)) if grid else trials
    if grid:
        return len(grid)
    if max_time is None:
        raise InputError("How many trials? Give trials=32, for instance, or max_time= in seconds.")
    return _ENDLESS


def _check_population(problem: Problem, pruner: Any, folds: int | None) -> None:
    if problem.training is None or len(problem.metrics) > 1:
        raise InputError("A population is for the training of a network, with one metric.")
    if folds is not None or type(pruner).__name__ != "NopPruner":
        raise InputError("A population has neither folds nor a pruner: its worse members are led.")
