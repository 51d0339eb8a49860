"""A study whose trials are calls in threads of the driver, each with workers of its own or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from farandole.tracebacks import short_traceback
from farandole.tuning.objective import FunctionObjective, RunOutput
from farandole.tuning.opening import Opening
from farandole.tuning.problem import Problem
from farandole.tuning.samplers import require_optuna
from farandole.tuning.slots import CallSlot
from farandole.tuning.space import Space, check_space
from farandole.tuning.storage import Direction
from farandole.tuning.study import Study
from farandole.tuning.study_run import run_study
from farandole.tuning.trial_run import TrialRun


@short_traceback
def tune_calls(
    call: Callable[[int, Mapping[str, Any], int | None], float],
    space: Space,
    *,
    metric: str,
    direction: Direction,
    trials: int | None = None,
    parallelism: int = 1,
    sampler: Any = "tpe",
    folds: int | None = None,
    max_time: float | None = None,
    name: str | None = None,
    storage: Any = None,
    resume: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> Study:
    """Call a function here for each trial, and for each fold of it; what it returns counts.

    Args:
        call: is called in several threads, with the number of a trial, its arguments and the
            number of a fold, which is None if there are none.
        space: what to try, as for `tune`; and so for all other arguments.

    >>> study = tune_calls(lambda number, arguments, fold: arguments["x"] ** 2, {"x": [3, 1, 2]},
    ...                    metric="square", direction="minimize", sampler="grid", progress=False)
    >>> study.best_params, study.best_value
    ({'x': 1}, 1.0)
    """
    start = time.perf_counter()
    require_optuna()
    check_space(space)
    problem = Problem(
        objective=FunctionObjective(call, (metric,)),
        space=space,
        metrics=(metric,),
        directions=(direction,),
    )
    opening = Opening.of(problem, sampler, "none", trials, max_time, folds, seed)

    def called(run: TrialRun, link: Any) -> RunOutput:
        return RunOutput({metric: float(call(run.number, run.arguments, run.fold))})

    study = run_study(
        opening,
        lambda search, count: [CallSlot(search, called) for _ in range(count)],
        name=name,
        storage=storage,
        resume=resume,
        parallelism=parallelism,
        max_time=max_time,
        progress=progress,
    )
    study.seconds = time.perf_counter() - start
    return study
