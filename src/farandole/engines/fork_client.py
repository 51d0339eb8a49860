"""The driver's side of the fork server: start it, ask it for workers, replace it, end it."""

from __future__ import annotations

import atexit
import functools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Hashable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from farandole.engines.fork_server import FORK, NOT_FORKABLE, ONE_THREAD, READY

_COMMAND = (
    "import sys; libraries, *sys.path[:] = sys.argv[1:]; del sys.argv[1:]\n"
    "from farandole.daemon import serve_local; serve_local(libraries.split())"
)
_SLOW_LIBRARIES = ("keras",)
"""They take seconds to import: the server has those that the driver has."""
_READ_AT_START = (
    *("PYTHON", "LD_", "LANG", "LC_", "TZ", "MALLOC_", "GLIBC_TUNABLES", "MIMALLOC_", "JE_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMPY_", "NPY_", "ARROW_"),
    *("TORCH", "PYTORCH_", "ATEN_", "DNNL_", "ONEDNN_", "CUDA_", "NVIDIA_", "NCCL_", "HIP_"),
    "KERAS_",
)
"""Variables that the interpreter, the C library, torch or Keras read once, while they start."""
_START_SECONDS = 120.0
"""A server that needs longer to load everything is stuck."""
_ANSWER_SECONDS = 30.0
"""A server that needs longer to fork is stopped or stuck."""
_UNKNOWN_CODE = 255


class NoAnswer(ConnectionError):
    """The server has died, or is stuck."""


class NotForkable(ConnectionError):
    """The server must not fork, or can't."""


class ForkedProcess:
    """A worker that the server forked: the part of `subprocess.Popen` that the engine uses."""

    def __init__(self, pid: int, stdin: IO[bytes], status: socket.socket) -> None:
        self.pid = pid
        self.stdin = stdin
        self._status = status
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self._code is None:
            self._poll_status(0)
        return self._code

    def wait(self, timeout: float) -> int:
        """Wait for its end, and give the exit code."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
            self._poll_status(left)
        return code

    def _poll_status(self, seconds: float) -> None:
        self._status.settimeout(seconds)
        try:
            message = self._status.recv(64)
        except (TimeoutError, BlockingIOError):
            return
        except OSError:
            message = b""
        if message:
            self._ended(int(message.removeprefix(b"exit ")))
        elif not _is_running(self.pid):  # the server was killed: nobody knows the code
            self._ended(_UNKNOWN_CODE)
        else:
            time.sleep(min(seconds, 0.02))

    def _ended(self, code: int) -> None:
        self._code = code
        self._status.close()


class ForkServer:
    """A server, as the driver sees it. It ends when its socket closes, for whatever reason."""

    def __init__(self, settings: Hashable) -> None:
        self.settings = settings
        self._answer: bytes | None = None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, ExitStack() as on_error:
            on_error.enter_context(self._control)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _COMMAND, " ".join(_libraries()), *_library_path()],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
                start_new_session=True,
            )
            on_error.pop_all()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def is_ready(self) -> bool:
        """Wait until it has loaded everything; False when it must not fork, or has died."""
        if self._answer is None:
            self._control.settimeout(_START_SECONDS)
            try:
                self._answer = self._control.recv(64)
            except TimeoutError:  # another one would be as slow
                self._answer = NOT_FORKABLE
                self.stop(kill=True)
            except OSError:
                self._answer = b""
        return self._answer == READY

    def is_gone(self) -> bool:
        """Whether its process has ended, though it could fork."""
        return self._answer != NOT_FORKABLE and self._process.poll() is not None

    def fork(self, listener: int | None) -> ForkedProcess:
        """A new worker; `NoAnswer`, `NotForkable`, or an OSError of this process's own."""
        with ExitStack() as stack, ExitStack() as kept:

            def closing(fd: int) -> int:
                stack.callback(os.close, fd)
                return fd

            # First: a new descriptor could get the number of a stream that is closed.
            inherited = [closing(os.dup(1)), closing(os.dup(2)), closing(os.open(".", os.O_PATH))]
            stdin_read, stdin_write = os.pipe()
            closing(stdin_read)
            stdin = kept.enter_context(open(stdin_write, "wb"))
            status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            kept.enter_context(status)
            stack.enter_context(theirs)
            fds = [stdin_read, *inherited, theirs.fileno()]
            pid = self._request(fds if listener is None else [*fds, listener], theirs, status)
            kept.pop_all()
        return ForkedProcess(pid, stdin, status)

    def _request(self, fds: list[int], theirs: socket.socket, status: socket.socket) -> int:
        """Send a request, and give the new worker's pid."""
        try:
            self._control.settimeout(_ANSWER_SECONDS)
            socket.send_fds(self._control, [FORK], fds)
            theirs.close()  # the server has the only one now: if it dies, the end is read
            status.settimeout(_ANSWER_SECONDS)
            answer = status.recv(64)
        except OSError as error:
            raise NoAnswer("the fork server doesn't answer") from error
        if answer == NOT_FORKABLE:
            self._answer = NOT_FORKABLE
            raise NotForkable("the fork server runs more than one thread, or the system refuses")
        word, _, pid = answer.partition(b" ")
        if word != b"pid":
            raise NoAnswer("the fork server made no worker")
        return int(pid)

    def stop(self, *, kill: bool = False) -> None:
        """Let it end: when its workers have ended, or at once."""
        self._control.close()
        if kill:
            self._process.kill()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:  # another thread's workers still run
            threading.Thread(target=self._process.wait, daemon=True).start()

    def forget_after_fork(self) -> None:
        """In a fork of the driver: leave the server to the parent."""
        self._control.close()
        self._process.returncode = 0  # it isn't a child of this process


_lock = threading.Lock()
_server: ForkServer | None = None


def ready_server() -> ForkServer | None:
    """The server of this process, started if need be; None where it can't be used."""
    global _server
    if sys.platform != "linux":  # elsewhere a fork isn't safe, or there is none
        return None
    with _lock:
        settings = _settings()
        if _server is None or _server.is_gone() or _server.settings != settings:
            _stop()
            _register_exit_hooks()
            _server = ForkServer(settings)
        return _server if _server.is_ready() else None


def kill_server(server: ForkServer) -> None:
    """Kill a server that doesn't answer. Its workers go on."""
    global _server
    with _lock:
        if _server is server:
            server.stop(kill=True)
            _server = None


def stop_fork_server() -> None:
    """End the process that local workers are forked from, and free its memory.

    It holds torch, and ends with this process in any case. The next run starts another one.

    >>> stop_fork_server()
    """
    with _lock:
        _stop()


def _stop() -> None:
    global _server
    if _server is not None:
        _server.stop()
        _server = None


@functools.cache  # once
def _register_exit_hooks() -> None:
    """End the server with this process, and leave it alone in a fork of this process."""
    atexit.register(stop_fork_server)
    os.register_at_fork(after_in_child=_forget_after_fork)


def _forget_after_fork() -> None:
    global _lock, _server
    _lock = threading.Lock()
    if _server is not None:
        _server.forget_after_fork()
        _server = None


def _settings() -> Hashable:
    """All that a process gets when it starts, and that the server can't change later."""
    import resource

    umask = []
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        umask = [line for line in lines if line.startswith("Umask")]
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return (
        sys.executable,
        tuple(filter(None, sys.path)),  # "", the current folder, may change at any time
        tuple(
            (name, value)
            for name, value in sorted(os.environ.items())
            if name.startswith(_READ_AT_START) and name not in ONE_THREAD
        ),
        tuple(_source_files()),
        _libraries(),
        tuple(resource.getrlimit(getattr(resource, name)) for name in limits),
        (*os.getresuid(), *os.getresgid(), *umask),
        (os.getpriority(os.PRIO_PROCESS, 0), *sorted(os.sched_getaffinity(0))),
    )


def _libraries() -> tuple[str, ...]:
    return tuple(name for name in _SLOW_LIBRARIES if name in sys.modules)


def _source_files() -> list[tuple[str, int, int]]:
    """Name, time and size of each file of this package."""
    found = []
    for folder, _, names in os.walk(Path(__file__).parent.parent):
        for name in names:
            if name.endswith(".py"):
                with suppress(FileNotFoundError):
                    state = os.stat(os.path.join(folder, name))
                    found.append((f"{folder}/{name}", state.st_mtime_ns, state.st_size))
    return sorted(found)


def _library_path() -> list[str]:
    """sys.path without the current folder and the script's: a server keeps no module of the user's.

    Unless a library is there, beside the script.
    """
    names = ("farandole", "torch", "numpy", "pyarrow")
    files = [sys.modules[name].__file__ or "" for name in names if name in sys.modules]
    libraries = {os.path.realpath(Path(file).parent.parent) for file in files}
    script = getattr(sys.modules["__main__"], "__file__", None)
    users = {_real_path(""), _real_path(os.path.dirname(script or ""))} - libraries
    return [entry for entry in sys.path if _real_path(entry) not in users]


def _real_path(path: str) -> str:
    try:
        return os.path.realpath(path)
    except FileNotFoundError:  # the current folder was deleted
        return ""


def _is_running(pid: int) -> bool:
    """Whether it has not ended: a zombie has, and stays one where nobody waits for orphans."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
