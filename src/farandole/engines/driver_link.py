"""The link between workers and driver: events and output go up, answers and a stop come down.

On Spark a small task and its result go another way too, so a driver that can't be reached costs the
live progress and no more. Large ones go over the link, in parts: Spark would have all of them in
the memory of its driver's JVM, which few have made large enough.
"""

from __future__ import annotations

import os
import pickle
import queue
import secrets
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from farandole.engines.authenticated_listener import AuthenticatedListener, listen
from farandole.engines.base import MessageHandler
from farandole.engines.channel import Channel, connect
from farandole.engines.encryption import Credentials, make_certificate
from farandole.engines.output import Output
from farandole.engines.pickled import Assembly, Part, Pickled
from farandole.errors import InputError
from farandole.world import LONGEST_WAIT

STOP, RESTART, ABORT, RECEIVED = b"stop", b"restart", b"abort", b"received"
_RECEIPT_WANTED = b"receipt?"
"""From a worker, in the place of a message: tell when all before this has been handled."""
_TASK_WANTED = b"task?"
"""From a worker too: send what all workers are to do."""
_TASK = b"task "
"""To a worker, before a pickled `PayloadStart` or `Part`."""
_QUESTION = b"question "
"""From a worker, before a pickled message: it waits for an answer."""
_ANSWER = b"answer "
"""To a worker that asked, before what the handler returned, pickled."""
_PURPOSE = b"driver link"
_MOST_BYTES = 64 << 30
"""Of a message: a local worker's result is one."""
_END = object()


@dataclass(frozen=True)
class Address:
    """Where the driver listens, and the secret that a worker has to know."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    certificate: str | None = field(default=None, repr=False)
    """If the connection is encrypted."""

    @property
    def credentials(self) -> Credentials:
        """What the ends of all connections of this run have to know."""
        return Credentials(self.secret, self.certificate)


@dataclass(frozen=True)
class PayloadStart:
    """Announces the parts of something large, from one end to the other."""

    sizes: list[int]


@dataclass(frozen=True)
class Question:
    """A message whose sender waits for an answer."""

    message: object


class DriverEndpoint:
    """The driver's end. Use as a context manager; messages arrive on its own threads.

    With `encrypt`, it makes a certificate for the connections of this run. Workers that ask for
    the `task` get it in parts; what they deliver in parts is in `payload_of`.
    """

    def __init__(
        self,
        host: str,
        handler: MessageHandler,
        *,
        encrypt: bool = False,
        task: Pickled | None = None,
    ) -> None:
        certificate = make_certificate() if encrypt else None
        self._task = task
        self._payloads: dict[int, Assembly] = {}
        self._handler = handler
        self._lock = threading.Lock()
        self._handling = threading.Lock()
        self._channels: list[Channel] = []
        self._readers: list[threading.Thread] = []
        self._stopping = False
        self._socket = listen(host)
        own_host, port = self._socket.getsockname()
        self.address = Address(own_host, port, secrets.token_bytes(32), certificate)
        self.error: BaseException | None = None
        """What the handler raised first. The workers know nothing of it: the engine ends them."""

    def __enter__(self) -> DriverEndpoint:
        self._listener = AuthenticatedListener(
            self._socket,
            self.address.credentials,
            _PURPOSE,
            limit=_MOST_BYTES,
            on_channel=self._welcome,
            on_stranger=print_notice,
        )
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._send(ABORT)
        self._listener.close()
        for reader in self._readers:  # workers have closed their ends: read what is left
            reader.join(2 if kind is None else 0.2)
        for channel in self._channels:
            channel.close()
        for reader in self._readers:
            reader.join(2)

    @property
    def connected(self) -> int:
        """How many workers have reached the driver."""
        return len(self._channels)

    def payload_of(self, rank: int) -> Pickled | None:
        """What a worker has delivered; None if it has not, or not all of it."""
        payload = self._payloads.pop(rank, None)
        return payload.pickled() if payload is not None and payload.is_complete else None

    def request_stop(self) -> None:
        """Ask every worker, present and future, for an orderly end."""
        self._stopping = True
        self._send(STOP)

    def request_restart(self) -> None:
        """Ask every worker that is there to end with this epoch: more of them will begin again."""
        self._send(RESTART)

    def _send(self, data: bytes) -> None:
        with self._lock:
            for channel in self._channels:
                _try_to_send(channel, data)

    def _welcome(self, channel: Channel) -> None:
        with self._lock:
            self._channels.append(channel)
            if self._stopping:
                _try_to_send(channel, STOP)
        reader = threading.Thread(target=self._read, args=(channel,), daemon=True)
        self._readers.append(reader)
        reader.start()

    def _read(self, channel: Channel) -> None:
        while True:
            try:
                data = channel.receive()
            except (EOFError, OSError):
                return
            if data == _RECEIPT_WANTED:
                with self._lock:
                    _try_to_send(channel, RECEIVED)
            elif data == _TASK_WANTED and self._task is not None:
                self._send_task(channel, self._task)
            elif data.startswith(_QUESTION):
                self._answer(data, channel)
            else:
                self._handle(data)

    def _send_task(self, channel: Channel, task: Pickled) -> None:
        """Part by part, so that others are answered in between."""
        for message in (PayloadStart(task.sizes), *task.parts()):
            with self._lock:
                if not _try_to_send(channel, _TASK + pickle.dumps(message)):
                    return

    def _answer(self, data: bytes, channel: Channel) -> None:
        """Whatever happens here, the worker gets an answer: else it would wait for ever."""
        answer = b""
        try:
            rank, message = _loads(data, _QUESTION)
            answer = cloudpickle.dumps(self._call_handler(rank, message))
        except Exception as error:
            said = f"What the driver answers a worker can't be pickled: {error}"
            self.error = self.error or InputError(said)
        with self._lock:
            _try_to_send(channel, _ANSWER + (answer or pickle.dumps(None)))

    def _handle(self, data: bytes) -> None:
        try:
            rank, message = pickle.loads(data)
        except Exception:  # a message of a class that this side doesn't know
            return
        if isinstance(message, PayloadStart):
            self._payloads[rank] = Assembly(message.sizes)
            return
        if isinstance(message, Part):
            self._payloads[rank].add(message)
            return
        self._call_handler(rank, message)

    def _call_handler(self, rank: int, message: object) -> Any:
        with self._handling:  # handlers draw on the terminal: one at a time
            try:
                return self._handler(rank, message)
            except BaseException as error:
                self.error = self.error or error


def _exit() -> None:
    """End this process at once, whatever it does: its peers have failed, or nobody waits."""
    os._exit(1)


class DriverLink:
    """A worker's end. `tell` only queues: a thread of its own connects and sends.

    When the driver gives up, `on_abort` is called from a thread, by default to end the process: it
    may be asleep, or wait in a collective, and Spark alone would let it go on for some seconds.
    """

    def __init__(
        self,
        rank: int,
        address: Address | None,
        *,
        timeout: float = 10.0,
        on_abort: Callable[[], None] = _exit,
    ) -> None:
        self._rank = rank
        self._on_abort = on_abort
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._restart = threading.Event()
        self._receipts: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._task: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._closed = False
        self._sending = threading.Thread(
            target=self._send_all, args=(address, timeout), daemon=True
        )
        self._sending.start()

    def tell(self, message: object) -> None:
        """Queue a message for the driver; once closed, drop it."""
        if not self._closed:
            self._queue.put(message)

    def ask(self, message: object) -> Any:
        """Send a message, and wait for the driver's answer to it."""
        with self._asking:
            self.tell(Question(message))
            answer = None if self._closed else self._answers.get()
        if answer is None:
            raise ConnectionError("the driver can't be reached from this worker")
        return _loads(answer, _ANSWER)

    def flush(self, timeout: float = 10.0) -> None:
        """Wait until all that was told is sent: the next thing to do may end this process."""
        sent = threading.Event()
        self.tell(sent)
        if not self._closed:
            sent.wait(timeout)

    def is_received(self, timeout: float = 5.0) -> bool:
        """Wait until the driver has handled all that was told; False if it may not have."""
        self.tell(_RECEIPT_WANTED)
        try:
            return not self._closed and self._receipts.get(timeout=timeout)
        except queue.Empty:
            return False

    def deliver(self, payload: Pickled) -> bool:
        """Send something large, and wait until the driver has it; False if it may not have."""
        for message in (PayloadStart(payload.sizes), *payload.parts()):
            self.tell(message)
        return self.is_received(LONGEST_WAIT)

    def fetch_task(self) -> Pickled | None:
        """What the driver has for all workers to do; None if it can't be reached."""
        self.tell(_TASK_WANTED)
        start = self._task.get()
        if not isinstance(start, PayloadStart):
            return None
        task = Assembly(start.sizes)
        while not task.is_complete:
            part = self._task.get()
            if not isinstance(part, Part):
                return None
            task.add(part)
        return task.pickled()

    def stop_requested(self) -> bool:
        """Whether the driver asked for an orderly end."""
        return self._stop.is_set()

    def restart_requested(self) -> bool:
        """Whether the driver wants all workers to begin again with more, after this epoch."""
        return self._restart.is_set()

    def preempted(self) -> bool:
        """SIGTERM comes to the process, not over this link: see `preemption`."""
        return False

    def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, then close the connection."""
        self._closed = True
        self._queue.put(_END)
        self._sending.join(timeout)

    def _send_all(self, address: Address | None, timeout: float) -> None:
        channel = opened = _connect(address, timeout) if address else None
        listening = threading.Thread(target=self._listen, args=(opened,), daemon=True)
        listening.start()
        while (message := self._queue.get()) is not _END:
            if isinstance(message, threading.Event):
                message.set()
                continue
            data = _dumps(self._rank, message)
            if channel is not None and not _try_to_send(channel, data):
                channel = None
            if channel is None or data is None:
                self._keep_here(message)
        if opened is not None:
            opened.close()
        listening.join()

    def _listen(self, channel: Channel | None) -> None:
        while channel is not None:
            try:
                heard = channel.receive()
            except (EOFError, OSError):
                self._receipts.put(False)
                self._task.put(None)
                self._answers.put(None)
                return
            if heard == RECEIVED:
                self._receipts.put(True)
            elif heard.startswith(_TASK):
                self._task.put(_loads(heard, _TASK))
            elif heard.startswith(_ANSWER):
                self._answers.put(heard)
            elif heard == ABORT:
                self._on_abort()
            elif heard == RESTART:
                self._restart.set()
            else:
                self._stop.set()

    def _keep_here(self, message: object) -> None:
        """What a driver that can't be reached doesn't get: this worker's log has it at least."""
        if message is _RECEIPT_WANTED:
            self._receipts.put(False)
        elif message is _TASK_WANTED:
            self._task.put(None)
        elif isinstance(message, Question):
            self._answers.put(None)
        elif isinstance(message, Output) and sys.__stderr__ is not None:
            sys.__stderr__.write(f"[rank {self._rank}] {message.text}\n")


def _connect(address: Address, timeout: float) -> Channel | None:
    """Connect in time: a firewall that drops packets must not hold us up."""
    place = address.host, address.port
    try:
        return connect(place, address.credentials, _PURPOSE, timeout=timeout, limit=_MOST_BYTES)
    except OSError:  # unreachable, refused or gone: training goes on without it
        return None


def print_notice(text: str) -> None:
    """To the user, apart from what their code prints."""
    print(f"farandole: {text}", file=sys.stderr, flush=True)


def _dumps(rank: int, message: object) -> bytes | None:
    if message is _RECEIPT_WANTED or message is _TASK_WANTED:
        return message
    try:
        if isinstance(message, Question):
            return _QUESTION + bytes(cloudpickle.dumps((rank, message.message)))
        return bytes(cloudpickle.dumps((rank, message)))
    except Exception:  # telling never fails: what doesn't pickle is dropped
        return None


def _loads(heard: bytes, prefix: bytes) -> Any:
    return pickle.loads(memoryview(heard)[len(prefix) :])


def _try_to_send(channel: Channel, data: bytes | None) -> bool:
    try:
        if data is not None:
            channel.send(data)
    except (OSError, ValueError):  # the other end has gone
        return False
    return True
