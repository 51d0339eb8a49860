"""The fork server: a process with torch loaded, which forks one worker for each request.

It runs one thread, loads no module of the user's, and does nothing but fork and wait. The driver's
side is `fork_client`. A request is one message with these file descriptors:

    stdin  stdout  stderr  current folder  status  [the listening socket of rank 0's store]

The worker reads its spec from stdin. Through `status` go back "pid 123" and "exit -9", or one
"not forkable".
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import NoReturn

from farandole.system_resources import usable_cores

FORK, READY, NOT_FORKABLE = b"fork", b"ready", b"not forkable"
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""The server's environment; without these, libraries start threads while they are loaded."""
_MOST_FDS = 6


def serve_forks(modules: Iterable[str]) -> NoReturn:
    """Load `modules`, then fork workers until the driver closes the other end of stdin."""
    control = socket.socket(fileno=0)
    try:
        for name in modules:
            importlib.import_module(name)
        forkable = _has_one_thread()
    except Exception:  # fresh interpreters will tell it in their own words
        forkable = False
    gc.collect()
    gc.freeze()  # the workers then share these pages: their collector leaves them alone
    os.chdir("/")
    with suppress(OSError):  # the driver has gone
        control.send(READY if forkable else NOT_FORKABLE)
        if forkable:
            _Server(control).run()
    os._exit(0)  # there is nothing to tidy up, which would take torch a second


def apply_driver_settings(environ: Mapping[str, str], path: Sequence[str], threads: int) -> None:
    """Take over, in a forked worker, what a fresh interpreter gets from the driver."""
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:] = path
    importlib.invalidate_caches()
    blas_threads = environ.get("OPENBLAS_NUM_THREADS", "")
    wanted = int(blas_threads) if blas_threads.isdecimal() else 0
    _set_openblas_threads(min(wanted or threads, usable_cores()))  # as it does by itself


class _Server:
    """Forks on request, and tells how each worker ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._statuses: dict[int, int] = {}
        """Of each worker that runs: its pid, and the file descriptor for its exit code."""
        self._signals, self._wakeup = socket.socketpair()
        self._wakeup.setblocking(False)

    def run(self) -> None:
        """Until the driver has closed its end, and the last worker has ended."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.fileno())
        sources = [self._control, self._signals]
        while self._statuses or self._control in sources:
            ready = wait(sources)
            if self._signals in ready:
                self._signals.recv(4096)
                self._reap()
            if self._control in ready and not self._take_request():
                sources.remove(self._control)

    def _take_request(self) -> bool:
        message, fds, _, _ = socket.recv_fds(
            self._control, len(FORK), _MOST_FDS, socket.MSG_CMSG_CLOEXEC
        )
        if not message:
            return False
        pid = _fork()
        if pid == 0:
            self._become_worker(fds)
        status = fds.pop(4)
        if pid is None:
            with suppress(OSError):  # the driver no longer waits
                os.write(status, NOT_FORKABLE)
            os.close(status)
        else:
            self._statuses[pid] = status
        _close(fds)
        return True

    def _reap(self) -> None:
        for pid in list(self._statuses):
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                status = self._statuses.pop(pid)
                with suppress(OSError):  # the driver no longer wants to know
                    os.write(status, b"exit %d" % os.waitstatus_to_exitcode(code))
                os.close(status)

    def _become_worker(self, fds: list[int]) -> NoReturn:
        """In the child: be what a fresh interpreter is, but for the modules that are loaded."""
        try:  # an error must not unwind into the server's loop
            from farandole.engines.local_worker import main

            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()  # before the driver knows the pid: it ends workers by their group
            *standard, folder, status = fds[:5]
            os.write(status, b"pid %d" % os.getpid())
            self._control.detach()
            for number, fd in enumerate(standard):
                os.dup2(fd, number)
            os.fchdir(folder)
            _close([*fds[:5], *self._statuses.values()])
            self._signals.close()
            self._wakeup.close()
            reset_inherited_state()
            main(fds[5] if len(fds) > 5 else None, forked=True)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


def _fork() -> int | None:
    """The child's pid, 0 in the child; None when it isn't safe, or the system refuses."""
    if not _has_one_thread():  # a lock that another thread held would stay locked in the child
        return None
    try:
        return os.fork()
    except OSError:
        return None


def _has_one_thread() -> bool:
    return len(os.listdir("/proc/self/task")) == 1


def reset_inherited_state() -> None:
    """Undo what forked processes would share, and fresh interpreters don't."""
    if "torch" in sys.modules:
        import numpy as np
        import torch

        torch.default_generator.seed()
        np.random.seed()  # Python's own generator does so by itself
    tempfile.tempdir = None  # TMPDIR may be another one now
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]


def _set_openblas_threads(threads: int) -> None:
    """NumPy's OpenBLAS read its variables when the server started."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        libraries = {line.split()[-1] for line in lines if "openblas" in line}
    for library in map(ctypes.CDLL, sorted(libraries)):
        for name in ("scipy_openblas_set_num_threads", "openblas_set_num_threads"):
            for function in (f"{name}64_", name):
                if hasattr(library, function):
                    library[function](threads)
                    break


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
