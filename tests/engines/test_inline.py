from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from farandole.engines import InlineEngine, Task
from farandole.testing import engine_contract as contract
from farandole.world import World

CHECKS = [check for check in contract.CHECKS if check is not contract.check_handler]


@pytest.mark.parametrize("check", CHECKS)
def test_contract(check: Callable[..., None]) -> None:
    check(InlineEngine(), 1)


def run(work: Callable[[World, Any], Any], *, stoppable: bool = False) -> list[Any]:
    task = Task(load=lambda *_: None, work=work, stoppable=stoppable)
    return InlineEngine().run(task, 1, timeout=5, on_message=lambda *_: None)


def test_sys_exit_does_not_pass_for_a_result() -> None:
    with pytest.raises(SystemExit):
        run(lambda world, _: sys.exit(3))


def press_after(seconds: float, times: int = 1) -> None:
    def press() -> None:
        for _ in range(times):
            time.sleep(seconds)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()


def until_stopped(world: World, _: object) -> str:
    while not world.link.stop_requested():
        time.sleep(0.01)
    return "in order"


def test_ctrl_c_ends_a_stoppable_task_in_order() -> None:
    press_after(0.2)
    assert run(until_stopped, stoppable=True) == ["in order"]


def test_a_second_ctrl_c_insists() -> None:
    done = threading.Event()
    press_after(0.2, times=2)
    with pytest.raises(KeyboardInterrupt):
        run(lambda world, _: done.wait(30), stoppable=True)
    done.set()


def test_ctrl_c_aborts_what_can_not_be_stopped() -> None:
    done = threading.Event()
    press_after(0.2)
    with pytest.raises(KeyboardInterrupt):
        run(lambda world, _: done.wait(30))
    done.set()
