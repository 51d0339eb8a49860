from __future__ import annotations

import pickle
import threading

import pytest

from farandole.engines.base import Task
from farandole.engines.serialization import PickledTask, dump_result, load_result
from farandole.errors import InputError, LaunchError


class OneWay:
    """Pickles, and fails to come back."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return int, ("not a number",)


def test_a_task_of_lambdas_comes_back() -> None:
    number = 3
    task = Task(load=lambda *_: number, work=lambda world, state: state + 1, stoppable=True)
    back = pickle.loads(pickle.dumps(PickledTask(task))).load()
    assert back.work(None, back.load(0, 1, iter(()))) == 4  # type: ignore[arg-type]
    assert back.stoppable


def test_a_task_that_holds_a_lock_is_refused_with_advice() -> None:
    lock = threading.Lock()
    with pytest.raises(InputError, match=r"can't be sent to the workers: .*lock.*inside") as caught:
        PickledTask(Task(load=lambda *_: lock, work=lambda *_: None))
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_result_comes_back() -> None:
    assert load_result(0, dump_result(0, {"a": [1, 2]})) == {"a": [1, 2]}


def test_a_result_that_can_not_leave_names_its_rank_and_type() -> None:
    with pytest.raises(TypeError, match=r"rank 2, a lock, can't be sent to the driver"):
        dump_result(2, threading.Lock())


def test_a_result_that_can_not_be_read_names_its_rank() -> None:
    with pytest.raises(LaunchError, match=r"rank 2 arrived, but can't be read here: ValueError"):
        load_result(2, dump_result(2, OneWay()))
