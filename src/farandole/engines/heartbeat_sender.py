"""The process beside a worker that tells the driver how the worker is.

It is an interpreter of its own, so it beats on while the worker's is stopped or locked. To start in
milliseconds it uses the standard library alone: `heartbeat` runs this file as a top-level module.

From the worker, through stdin: the settings, a byte for each tick, and `OVER` at the end of the
run; without that, the end of stdin is the worker's death. To the driver, which first sends a nonce:

    hello   nonce, rank, HMAC(secret, "hello", both nonces, rank)
    frame   length, kind, text, HMAC(session's key, number of the frame, kind, text)

From the driver comes only `HMAC(session's key, "kill")`: the run is given up.
"""

from __future__ import annotations

import hmac
import os
import select
import signal
import socket
import struct
import sys
import time

TICK, OVER = b".", b"!"
BEAT, STUCK, DEAD, DONE = b"b", b"s", b"d", b"e"
NONCE_BYTES, MAC_BYTES = 16, 32
HELLO = struct.Struct(f">{NONCE_BYTES}sI{MAC_BYTES}s")
LENGTH = struct.Struct(">H")
MOST_TEXT = 4096
BEATS = 6
"""How many there are in the time after which a worker that doesn't respond is given up."""
_SETTINGS = struct.Struct(">HIIIdiB")
_DUMP_SECONDS = 1.0
"""How long a worker may take to write down where it is."""
_RECONNECT_SECONDS = 0.1


def mac(key: bytes, *parts: bytes) -> bytes:
    """Sign some bytes; each part with its length, so that no two lists of parts are alike."""
    sized = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(key, sized, "sha256")


def session_key(secret: bytes, driver: bytes, sender: bytes) -> bytes:
    """The key of one connection, from the nonces of both ends."""
    return mac(secret, b"session", driver, sender)


def hello(secret: bytes, driver: bytes, sender: bytes, rank: int) -> bytes:
    """What a sender says first."""
    proof = mac(secret, b"hello", driver, sender, rank.to_bytes(4, "big"))
    return HELLO.pack(sender, rank, proof)


def frame(key: bytes, number: int, kind: bytes, text: bytes = b"") -> bytes:
    """One message to the driver."""
    body = kind + text[:MOST_TEXT]
    return LENGTH.pack(len(body)) + body + mac(key, number.to_bytes(8, "big"), body)


def kill_command(key: bytes) -> bytes:
    """The one message from the driver."""
    return mac(key, b"kill")


def pack_settings(
    host: str,
    port: int,
    secret: bytes,
    *,
    rank: int,
    pid: int,
    seconds: float,
    dump: int,
    ends_with_driver: bool,
) -> bytes:
    """What the worker writes first, for `_read_settings`."""
    name = host.encode()
    sizes = _SETTINGS.pack(len(name), port, rank, pid, seconds, dump, ends_with_driver)
    return sizes + secret + name


def clock() -> float:
    """Seconds that go on while the machine sleeps, where the system has such a clock."""
    number = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if number is None else time.clock_gettime(number)


def oom_kills() -> int:
    """How many processes of this container, or else machine, the kernel has killed for memory."""
    for name, kinds, file in _memory_groups():
        found = _counter(f"/sys/fs/cgroup/{kinds}{name.strip('/')}/{file}")
        if found is not None:
            return found
    return _counter("/proc/vmstat") or 0


class Sender:
    """Watches one worker for one run."""

    def __init__(
        self,
        secret: bytes,
        address: tuple[str, int],
        *,
        rank: int,
        pid: int,
        seconds: float,
        dump: int,
        ends_with_driver: bool,
    ) -> None:
        self._secret = secret
        self._address = address
        self._rank = rank
        self._pid = pid
        self._seconds = seconds
        self._interval = seconds / BEATS
        self._dump = dump
        self._ends_with_driver = ends_with_driver
        self._started = _stat(pid)[19:20]
        self._oom_kills = oom_kills()
        self._socket: socket.socket | None = None
        self._key = b""
        self._frames = 0
        self._received = b""
        self._is_known = False

    def run(self) -> None:
        """Until the run is over, or the worker dead."""
        before = ticked = clock()
        due = before
        while True:
            sources = [0] if self._socket is None else [0, self._socket.fileno()]
            ready, _, _ = select.select(sources, [], [], max(0.0, due - clock()))
            now = clock()
            if now - before > 2 * self._interval:  # this host was asleep, the worker too
                ticked = now
            before = now
            if 0 in ready:
                said = os.read(0, 4096)
                if OVER in said or not said:
                    return self._end(over=OVER in said)
                ticked = now
            if len(ready) > (0 in ready):
                self._hear()
            if now >= due:
                if not self._is_alive():
                    return self._end(over=False)
                self._beat(now - ticked)
                due = now + self._interval

    def _end(self, *, over: bool) -> None:
        if over:
            if self._is_known:
                self._send(DONE)
            return
        # The kernel closes a process's files before its parent can collect the exit status, but
        # who of us is faster is open.
        status = (_stat(self._pid)[49:50] or [b"?"])[0]
        killed_for_memory = b"m" if oom_kills() > self._oom_kills else b"-"
        crash = b"" if self._dump < 0 else self._read_dump(0.0)
        self._send(DEAD, b"%s %s %s" % (status, killed_for_memory, crash))

    def _is_alive(self) -> bool:
        found = _stat(self._pid)
        if not self._started:  # no /proc here
            return True
        return found[19:20] == self._started and found[0] not in (b"Z", b"X")

    def _beat(self, age: float) -> None:
        # One beat early: the worker is to be found within the seconds, and not after them.
        if age < self._seconds - self._interval:
            self._send(BEAT)
            return
        state = (_stat(self._pid) or [b"?"])[0]
        can_dump = self._dump >= 0 and state not in (b"T", b"t")
        stack = self._dumped_stack() if can_dump else b""
        self._send(STUCK, b"%s %d %s" % (state, round(age), stack))
        if can_dump and self._socket is None:  # the driver doesn't know: nothing has happened
            os.kill(self._pid, signal.SIGCONT)

    def _dumped_stack(self) -> bytes:
        """Where the worker's main thread is: its handler needs no interpreter lock.

        A signal may wake up a C function that waits. Then the worker would go on, though the driver
        is about to give it up: so it is stopped, but not before it has written a heading and the
        line where it is, which on a busy machine may be apart.
        """
        deadline = clock() + _DUMP_SECONDS
        os.kill(self._pid, dump_signal())
        stack = b""
        while stack.count(b"\n") < 2 and (more := self._read_dump(max(0.0, deadline - clock()))):
            stack += more
        os.kill(self._pid, signal.SIGSTOP)
        return stack + self._read_dump(0.01)

    def _read_dump(self, seconds: float) -> bytes:
        ready, _, _ = select.select([self._dump], [], [], seconds)
        return os.read(self._dump, MOST_TEXT - 64) if ready else b""

    def _send(self, kind: bytes, text: bytes = b"") -> None:
        if self._socket is None:
            self._connect()
        if self._socket is None:
            return
        try:
            self._socket.sendall(frame(self._key, self._frames, kind, text))
            self._frames += 1
        except OSError:
            self._disconnect()

    def _connect(self) -> None:
        wait = max(0.5, self._interval)
        try:
            connection = socket.create_connection(self._address, wait)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # a cut cable is no error by itself
                limit = int(max(1.0, self._seconds / 3) * 1000)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)
            theirs = _receive(connection, NONCE_BYTES)
            mine = os.urandom(NONCE_BYTES)
            connection.sendall(hello(self._secret, theirs, mine, self._rank))
        except ConnectionRefusedError:  # nobody listens there any more
            return self._lose_driver()
        except OSError:
            return
        self._socket, self._frames, self._received = connection, 0, b""
        self._key = session_key(self._secret, theirs, mine)
        self._is_known = True

    def _hear(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(MAC_BYTES)
        except OSError:
            data = b""
        self._received += data
        if not data:
            self._disconnect()
        elif len(self._received) >= MAC_BYTES:
            if hmac.compare_digest(self._received[:MAC_BYTES], kill_command(self._key)):
                self._kill()
            self._disconnect()

    def _disconnect(self) -> None:
        """Connect anew: only if nobody listens any more has the driver gone.

        A crowd of strangers may have made it drop this connection before it knew whose it was.
        """
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        time.sleep(_RECONNECT_SECONDS)
        self._connect()

    def _lose_driver(self) -> None:
        """The driver has gone: where nobody else would end this worker, be it stuck, end it."""
        if self._ends_with_driver:
            self._kill()

    def _kill(self) -> None:
        if self._is_alive():  # and nobody else has its number
            os.kill(self._pid, signal.SIGKILL)  # a stopped process minds nothing less
        os._exit(0)


def dump_signal() -> int:
    """The signal at which a worker writes down where it is."""
    return int(signal.SIGRTMIN) + 11


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on (the third); none where there is no file."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _memory_groups() -> list[tuple[str, str, str]]:
    """The control groups that count memory around this process: path, folder and file."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    first = [(path, "memory/", "memory.oom_control") for _, kind, path in lines if kind == "memory"]
    second = [(path, "", "memory.events") for _, kind, path in lines if kind == ""]
    return first + second


def _counter(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            pairs = [line.split() for line in file]
    except OSError:
        return None
    return next((int(pair[1]) for pair in pairs if pair[0] == "oom_kill"), None)


def _receive(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise ConnectionError("the driver has closed the connection")
        data += more
    return data


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            sys.exit(0)
        data += more
    return data


def main() -> None:
    """Read the settings, and beat."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to pass on
    numbers = _SETTINGS.unpack(_read(_SETTINGS.size))
    length, port, rank, pid, seconds, dump, ends_with_driver = numbers
    secret, host = _read(MAC_BYTES), _read(length).decode()
    Sender(
        secret,
        (host, port),
        rank=rank,
        pid=pid,
        seconds=seconds,
        dump=dump,
        ends_with_driver=bool(ends_with_driver),
    ).run()
    os._exit(0)  # the worker waits for the end
