from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from farandole.engines import preemption
from farandole.engines.preemption import PreemptibleLink, Preemption
from farandole.engines.process_exit import TERMINATED
from farandole.world import SilentLink


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)


def test_sigterm_is_noted_and_the_handler_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    threads = set(threading.enumerate())
    with Preemption(is_looked_at=True) as noted:
        link = PreemptibleLink(SilentLink(), noted)
        assert not link.preempted()
        terminate()
        terminate()
        assert link.preempted()
        assert not link.stop_requested()  # that is the driver's to ask
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(set(threading.enumerate()) - threads) <= 1  # a timer that ends


def test_a_task_that_does_not_look_ends_as_always() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Preemption(is_looked_at=False):
        assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_leaves_the_handler_alone() -> None:
    seen: list[object] = []

    def enter() -> None:
        with Preemption(is_looked_at=True):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_a_worker_that_goes_on_is_ended_after_the_grace() -> None:
    code = (
        "import os, signal, time\n"
        "from farandole.engines import preemption\n"
        "preemption.GRACE_SECONDS = 0.2\n"
        "with preemption.Preemption(True):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
    )
    assert preemption.GRACE_SECONDS < 30  # which clusters allow
    done = subprocess.run([sys.executable, "-c", code], timeout=50, check=False)
    assert done.returncode == TERMINATED
