from __future__ import annotations

import inspect
import pickle

import pytest

from farandole import errors

EXAMPLES: list[errors.FarandoleError] = [
    errors.FarandoleError("x"),
    errors.InputError("x"),
    errors.LaunchError("x"),
    errors.NotEnoughSlots(8, 2),
    errors.WorkerMissing([1, 3], 2.5),
    errors.WorkerFailed(3, "KeyError: 'x'", "Traceback …"),
    errors.WorkerLost(1, "its process was stopped"),
    errors.JobCancelled("x"),
    errors.NotAuthentic("x"),
    errors.PeerLost([2], 30.0),
    errors.TrainingDiverged("x"),
    errors.ArtifactError("x"),
    errors.CheckpointError("x"),
    errors.ScratchError("x"),
    errors.MissingPackage("pyspark", "spark"),
]


def all_errors() -> set[type]:
    return {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    }


def test_the_examples_are_complete() -> None:
    assert {type(example) for example in EXAMPLES} == all_errors()


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_survives_pickling(error: errors.FarandoleError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


@pytest.mark.parametrize("kind", sorted(all_errors(), key=lambda kind: kind.__name__))
def test_the_tree_at_the_top_of_the_file_names_every_error(kind: type) -> None:
    assert errors.__doc__ is not None
    assert issubclass(kind, errors.FarandoleError)
    line = next(line for line in errors.__doc__.splitlines() if f"{kind.__name__}" in line)
    for base in kind.__bases__:  # the builtin one, in brackets
        assert base.__module__ != "builtins" or base is Exception or f"({base.__name__})" in line


def test_a_suggestion_is_close_or_says_all_there_is() -> None:
    assert errors.suggestion("epoch", ("seed", "epochs")) == "Did you mean 'epochs'?"
    assert errors.suggestion("x", {"seed": 1, "epochs": 2}) == "There are seed, epochs."


def test_what_the_messages_name() -> None:
    assert "8 workers" in str(errors.NotEnoughSlots(8, 2))
    assert "only 2 tasks" in str(errors.NotEnoughSlots(8, 2))
    assert str(errors.WorkerMissing([1, 3], 2.5)).startswith("rank 1, rank 3 did not arrive")
    assert str(errors.PeerLost([2], 30.0)).startswith("rank 2 did not come along within 30 s.")
    assert str(errors.PeerLost([1, 2])).startswith("rank 1, rank 2 left while others were waiting")
    failed = str(errors.WorkerFailed(3, "KeyError: 'x'", "Traceback …"))
    assert failed == "rank 3 failed: KeyError: 'x'\n\nTraceback …"
    assert "pip install 'farandole[spark]'" in str(errors.MissingPackage("pyspark", "spark"))
