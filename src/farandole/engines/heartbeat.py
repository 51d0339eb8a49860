"""A worker's heartbeat: ticks of its interpreter, passed on by a process that outlives a stuck one.

The other ends are `heartbeat_sender`, the process beside the worker, and `heartbeat_monitor`, on
the driver.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from farandole.engines.heartbeat_sender import BEATS, OVER, TICK, dump_signal, pack_settings

_COMMAND = "import sys; sys.path.append(sys.argv[1]); from heartbeat_sender import main; main()"
_FOLDER = str(Path(__file__).parent)
_END_SECONDS = 2.0


@dataclass(frozen=True)
class HeartbeatAddress:
    """Where the driver listens for beats, what to sign them with, and how soon a worker is lost."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    seconds: float


class Heartbeat:
    """Tells the driver that this worker is alive, for the body of a `with`.

    It belongs to a run: in a process that Spark uses again, the next run has one of its own.

    Args:
        rank: Of this worker.
        address: Of the driver's `HeartbeatMonitor`.
        ends_with_driver: Whether to kill this process when the driver goes: where it wouldn't
            notice by itself, because it is stopped or locked, nobody else might.
    """

    def __init__(
        self, rank: int, address: HeartbeatAddress, *, ends_with_driver: bool = False
    ) -> None:
        self._rank = rank
        self._address = address
        self._ends_with_driver = ends_with_driver
        self._over = threading.Event()
        self._sender: subprocess.Popen[bytes] | None = None
        self._ticking = threading.Thread(target=self._tick, daemon=True)
        self._dump: tuple[int, int] | None = None
        self._tells_crashes = False
        self._settings = b""
        self._starts = 0

    def __enter__(self) -> Heartbeat:
        if hasattr(signal, "SIGRTMIN"):
            self._dump = os.pipe()
            os.set_blocking(self._dump[1], False)
            faulthandler.register(dump_signal(), self._dump[1], all_threads=False)
            self._tells_crashes = not faulthandler.is_enabled()
            if self._tells_crashes:  # a segmentation fault says where it happened
                faulthandler.enable(self._dump[1], all_threads=False)
        self._start_sender()
        self._ticking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._ticking.join(_END_SECONDS)
        self._end_sender()
        if self._dump is not None:
            faulthandler.unregister(dump_signal())
            if self._tells_crashes:
                faulthandler.disable()
            for descriptor in self._dump:
                os.close(descriptor)

    def _tick(self) -> None:
        while not self._over.wait(self._address.seconds / BEATS):
            if not self._write(TICK):  # it was killed: the driver would take the silence for ours
                self._end_sender()
                self._start_sender()

    def _start_sender(self) -> None:
        dump = -1 if self._dump is None else self._dump[0]
        try:
            self._sender = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _COMMAND, _FOLDER],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=[] if dump < 0 else [dump],
                start_new_session=True,  # a group that is stopped as a whole is noticed as well
            )
        except OSError:  # no memory, or too many processes: this worker may live all the same
            self._sender = None
            return
        assert self._sender.stdin is not None
        os.set_blocking(self._sender.stdin.fileno(), False)
        self._settings = pack_settings(
            self._address.host,
            self._address.port,
            self._address.secret,
            rank=self._rank,
            pid=os.getpid(),
            seconds=self._address.seconds,
            dump=dump,
            ends_with_driver=self._ends_with_driver,
        )
        self._starts += 1
        self._write(self._settings)

    def _write(self, data: bytes) -> bool:
        """Whether the sender still takes what it is told."""
        if self._sender is None or self._sender.stdin is None:
            return False
        try:
            os.write(self._sender.stdin.fileno(), data)
        except BlockingIOError:  # it is stopped, or has no core: it knows enough
            return True
        except OSError:
            return False
        return True

    def _end_sender(self) -> None:
        if self._sender is None:
            return
        assert self._sender.stdin is not None
        if self._has_not_begun():  # a short run need not wait for it
            self._sender.kill()
        self._write(OVER)
        with suppress(OSError):
            self._sender.stdin.close()
        try:
            self._sender.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._sender.kill()
            self._sender.wait()
        self._sender = None

    def _has_not_begun(self) -> bool:
        """Whether the driver can't have heard of this worker: the settings are still unread."""
        assert self._sender is not None
        assert self._sender.stdin is not None
        if self._starts > 1 or sys.platform != "linux":
            return False
        unread = bytearray(4)
        fcntl.ioctl(self._sender.stdin.fileno(), termios.FIONREAD, unread)
        return int.from_bytes(unread, sys.byteorder) >= len(self._settings)
