from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from farandole.engines.process_exit import describe_exit


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os._exit(7)", "exit code 7"),
        ("import os; os._exit(0)", "exit code 0"),
        ("import os; os._exit(143)", "SIGTERM"),
        ("import os; os.abort()", "SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "segmentation fault"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGBUS)", "/dev/shm is full"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "SIGTERM"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed from outside"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGUSR1)", "signal 10 (SIGUSR1)"),
    ],
)
def test_the_end_of_a_process_is_told_by_its_code(code: str, words: str) -> None:
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False)
    assert words in describe_exit(done.returncode)
    assert ("memory" in describe_exit(done.returncode)) == ("SIGKILL" in code)


def test_memory_is_blamed_only_if_the_kernel_says_so() -> None:
    assert "for lack of memory" in describe_exit(-signal.SIGKILL, out_of_memory=True)
    assert "no lack of memory" in describe_exit(-signal.SIGKILL)
    assert "memory" not in describe_exit(-signal.SIGSEGV, out_of_memory=True)
