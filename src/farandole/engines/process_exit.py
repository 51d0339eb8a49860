"""How a process ended, in words."""

from __future__ import annotations

import signal

TERMINATED = 128 + signal.SIGTERM
"""The exit code of a process that has ended because of SIGTERM, though it had a handler."""
_SIGNALS = {
    signal.SIGSEGV: "a segmentation fault (SIGSEGV) in a C extension or a library",
    signal.SIGBUS: "a bus error (SIGBUS): a file that it had mapped was cut short, or the disk or "
    "/dev/shm is full",
    signal.SIGABRT: "an abort (SIGABRT): a library gave up, and most often says why on stderr",
    signal.SIGILL: "an illegal instruction (SIGILL): a library was built for another processor",
    signal.SIGFPE: "an arithmetic error (SIGFPE) in a C extension or a library",
    signal.SIGTERM: "a request to end from outside (SIGTERM)",
}


def describe_exit(code: int, *, out_of_memory: bool = False) -> str:
    """Say how a process ended that left no error message.

    Args:
        code: Its exit code; a signal's number, negative, if that ended it.
        out_of_memory: Whether the kernel has killed processes here for lack of memory meanwhile.

    >>> describe_exit(7)
    'its process left with exit code 7 and without an error message, as os._exit() does'
    """
    if code == TERMINATED:
        code = -signal.SIGTERM
    if code >= 0:
        return (
            f"its process left with exit code {code} and without an error message, as os._exit() "
            "does"
        )
    if -code == signal.SIGKILL:
        return _describe_kill(out_of_memory)
    why = _SIGNALS.get(signal.Signals(-code)) if _is_known(-code) else None
    return f"its process died of {why or f'signal {-code} ({_name(-code)})'}"


def _describe_kill(out_of_memory: bool) -> str:
    if out_of_memory:
        return (
            "the kernel killed its process for lack of memory: give workers more of it, or take "
            "fewer of them, or a smaller batch_size"
        )
    return (
        "its process was killed from outside (SIGKILL); the kernel reports no lack of memory on "
        "this machine"
    )


def _is_known(number: int) -> bool:
    return number in {one.value for one in signal.Signals}


def _name(number: int) -> str:
    return signal.Signals(number).name if _is_known(number) else "unknown"
