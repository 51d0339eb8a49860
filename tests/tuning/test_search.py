"""The search by itself: runs are handed out and ended by hand, with no worker in sight."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

from farandole.errors import InputError, WorkerFailed
from farandole.tuning.search import SampledTrials, Search, SearchLimits
from farandole.tuning.space import Float
from farandole.tuning.trial_run import Report, RunResult, TrialRun, Wait


def make_search(
    trials: int = 3, pruner: Any = None, space: Any = None, done: int = 0, **limits: Any
) -> Search:
    metrics = limits.pop("metrics", ["loss"])
    study = optuna.create_study(
        directions=["minimize"] * len(metrics),
        sampler=optuna.samplers.RandomSampler(seed=1),
        pruner=pruner or optuna.pruners.NopPruner(),
    )
    proposer = SampledTrials(study, space or {"x": Float(0, 1)})
    return Search(
        study, proposer, SearchLimits(metrics=metrics, trials=trials, **limits), done=done
    )


def next_run(search: Search) -> TrialRun:
    run = search.next_run()
    assert isinstance(run, TrialRun)
    return run


def end(search: Search, run: TrialRun, loss: float) -> bool:
    return search.finish(RunResult(run=run, values={"loss": loss}, seconds=1.0, row_epochs=10))


def test_so_many_trials_and_no_more() -> None:
    search = make_search(trials=2)
    first, second = next_run(search), next_run(search)
    assert (first.number, second.number) == (0, 1)
    assert isinstance(search.next_run(), Wait)  # one of them may have to run again
    end(search, first, 0.5)
    end(search, second, 0.25)
    assert search.next_run() is None
    assert search.best_numbers == [1]
    assert not search.has_work


def test_a_lost_run_runs_again_once() -> None:
    search = make_search(trials=1)
    run = next_run(search)
    search.lose(run, "killed")
    again = next_run(search)
    assert again == run
    search.lose(again, "killed once more")
    assert search.next_run() is None
    assert search.study.trials[0].state.name == "FAIL"
    assert "lost twice: killed once more" in search.study.trials[0].user_attrs["error"]


def test_folds_are_runs_of_one_trial_and_their_mean_counts() -> None:
    search = make_search(trials=1, folds=3)
    runs = [next_run(search) for _ in range(3)]
    assert [run.fold for run in runs] == [0, 1, 2]
    assert len({tuple(run.arguments.items()) for run in runs}) == 1
    for run, loss in zip(runs, (1.0, 2.0, 6.0), strict=True):
        end(search, run, loss)
    assert search.study.best_value == 3.0
    assert search.study.trials[0].user_attrs["folds"] == [[1.0], [2.0], [6.0]]
    assert search.study.trials[0].user_attrs["row_epochs"] == 30


def test_a_fold_that_fails_ends_its_trial() -> None:
    search = make_search(trials=2, folds=3)
    first, second = next_run(search), next_run(search)
    search.finish(RunResult(run=first, error="ValueError: no", traceback="Traceback …"))
    assert search.report(Report(second, 1, 0.5))  # its other folds are told to stop
    assert next_run(search).number == 1  # and the one that had not begun never does
    assert not end(search, second, 0.5)
    trial = search.study.trials[0]
    assert (trial.state.name, trial.user_attrs["traceback"]) == ("FAIL", "Traceback …")


def test_what_folds_cost_that_end_after_their_trial_was_pruned() -> None:
    pruner = optuna.pruners.ThresholdPruner(upper=1.0)
    search = make_search(trials=1, folds=4, pruner=pruner)
    first, second, third = (next_run(search) for _ in range(3))
    assert search.report(Report(first, 1, 9.0))
    search.finish(RunResult(run=first, stopped=True, seconds=1.0, row_epochs=7))
    assert isinstance(search.next_run(), Wait)  # the fourth fold never begins
    end(search, second, 9.0)  # it had ended before it heard of that
    search.lose(third, "killed")
    assert search.next_run() is None  # and does not run again
    trial = search.study.trials[0]
    assert (trial.state.name, trial.user_attrs["reason"]) == ("PRUNED", "pruned")
    assert (trial.user_attrs["row_epochs"], trial.user_attrs["seconds"]) == (17, 2.0)


def test_a_bad_trial_is_stopped_but_not_at_its_last_step() -> None:
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)
    search = make_search(trials=3, pruner=pruner)
    good = next_run(search)
    assert not search.report(Report(good, 1, 0.1))
    end(search, good, 0.1)
    bad, last = next_run(search), next_run(search)
    assert not search.report(Report(bad, None))  # it only asks
    assert search.report(Report(bad, 1, 9.0))
    assert search.report(Report(bad, None))
    search.finish(RunResult(run=bad, stopped=True, row_epochs=7))
    assert not search.report(Report(last, 1, 9.0, is_last=True))
    end(search, last, 9.0)
    states = [trial.state.name for trial in search.study.trials]
    assert states == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert search.study.trials[1].user_attrs["row_epochs"] == 7


def test_a_metric_that_is_never_reported_ends_the_study() -> None:
    search = make_search()
    search.finish(RunResult(run=next_run(search), values={"accuracy": 0.5, "size": 3.0}))
    assert isinstance(search.error, InputError)
    assert "metric='loss' was never reported: a trial gave accuracy, size" in str(search.error)
    assert search.next_run() is None


def test_a_value_that_is_no_number_fails_its_trial_alone() -> None:
    search = make_search(trials=2)
    end(search, next_run(search), float("nan"))
    end(search, next_run(search), 0.5)
    assert search.error is None
    assert search.study.trials[0].state.name == "FAIL"
    assert "diverged" in search.study.trials[0].user_attrs["error"]


def test_the_best_networks_are_kept() -> None:
    search = make_search(trials=3, keeps_best=True)
    kept = []
    for loss in (0.5, 0.7, 0.2):
        run = next_run(search)
        if end(search, run, loss):
            search.keep(run.number, f"network {run.number}")
            kept.append(run.number)
    assert kept == [0, 2]
    assert search.networks == {2: "network 2"}


def test_with_several_metrics_all_of_the_front_are_kept() -> None:
    search = make_search(trials=3, keeps_best=True, metrics=["loss", "size"])
    for loss, size in ((0.5, 10.0), (0.2, 50.0), (0.6, 60.0)):
        run = next_run(search)
        if search.finish(RunResult(run=run, values={"loss": loss, "size": size})):
            search.keep(run.number, run.number)
    assert search.networks == {0: 0, 1: 1}


def test_time_up_and_stop() -> None:
    search = make_search(max_time=1e-9)
    search.next_run()
    assert search.next_run() is None
    assert search.ended == "max_time reached"
    search = make_search()
    run = next_run(search)
    search.report(Report(run, 1, 0.5))
    search.stop("interrupted")
    assert search.report(Report(run, None))
    search.close()
    trial = search.study.trials[0]
    assert (trial.state.name, trial.user_attrs["reason"]) == ("PRUNED", "interrupted")


def test_a_space_that_raises_ends_the_study() -> None:
    def broken(trial: Any) -> Any:
        raise LookupError("of the user's own")

    search = make_search(space=broken)
    assert search.next_run() is None
    assert isinstance(search.error, LookupError)


def test_trials_that_were_stopped_are_no_failures() -> None:
    search = make_search(trials=9)
    runs = [next_run(search) for _ in range(5)]
    search.stop("interrupted")
    search.finish(RunResult(run=runs[0], stopped=True))
    search.close()
    assert search.error is None
    assert {trial.user_attrs["reason"] for trial in search.study.trials} == {"interrupted"}


def test_a_run_that_ended_can_not_be_lost() -> None:
    search = make_search(trials=1, folds=2)
    first, second = next_run(search), next_run(search)
    end(search, first, 0.5)
    search.lose(first, "its worker died after that")
    assert isinstance(search.next_run(), Wait)
    end(search, second, 0.5)
    assert search.next_run() is None


@pytest.mark.parametrize("done", [2, 3])
def test_trials_of_before_count(done: int) -> None:
    search = make_search(trials=3, done=done)
    assert isinstance(search.next_run(), TrialRun) == (done < 3)


def test_trials_that_all_fail_alike_end_the_study_early() -> None:
    search = make_search(trials=100)
    for _ in range(4):
        assert search.error is None
        search.finish(RunResult(run=next_run(search), error="KeyError: 'colour'"))
    assert isinstance(search.error, WorkerFailed)
    assert "all 4 trials failed. The first: KeyError: 'colour'" in str(search.error)
    search = make_search(trials=100)
    end(search, next_run(search), 0.5)
    for _ in range(6):
        search.finish(RunResult(run=next_run(search), error="KeyError: 'colour'"))
    assert search.error is None
