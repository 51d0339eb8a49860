"""Supervisor: several workers behind one port. One that dies is replaced."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from farandole.errors import InputError, LaunchError
from farandole.serving.control import Channel
from farandole.serving.grpc_server import joined, reserve
from farandole.serving.json_text import check_installed
from farandole.serving.serve import Serving, told
from farandole.serving.server import address_of, listen

log = logging.getLogger("farandole.serving")
PAUSE = 1.0
"""Seconds before a worker that died soon after its start is replaced."""
METRICS = 3.0
"""Seconds that workers have to say what they counted; whoever doesn't is left out."""
LOADING = 600.0
"""Seconds that they have to load a model."""
_SILENT = {"status": 503, "error": "A worker hasn't answered: try again, or look at its log."}


def supervise(serving: Serving, say: Callable[[str], None]) -> None:
    """Serve with several workers until SIGTERM or Ctrl-C."""
    check_installed()
    if serving.tls is not None:
        serving.tls.context()
    with ExitStack() as sockets:
        listener = sockets.enter_context(listen(serving.host, serving.port))
        if serving.grpc_port is not None:
            listen(serving.host, serving.grpc_port).close()  # those of another server aren't shared
            kept = sockets.enter_context(reserve(serving.host, serving.grpc_port))
            serving = replace(serving, grpc_port=kept.getsockname()[1])
        asyncio.run(Supervisor(serving, listener, say).run())


@dataclass(eq=False)
class _Member:
    """One worker process, as long as it lives."""

    number: int
    process: asyncio.subprocess.Process
    channel: Channel
    ready: bool = False
    missed: list[tuple[str, str]] = field(default_factory=list)
    """What was to be done in all workers while this one read its models."""
    tasks: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)


class Supervisor:
    """Starts workers, replaces those that die, and carries what concerns all of them."""

    def __init__(
        self, serving: Serving, listener: socket.socket, say: Callable[[str], None]
    ) -> None:
        self._serving = serving
        self._listener = listener
        self._say = say
        self._starting: set[_Member] = set()
        self._members: dict[int, _Member] = {}
        self._unloaded: set[str] = set()
        self._stopping = asyncio.Event()
        self._failure = ""
        self._told = False
        self._tasks = 0
        self._changes = asyncio.Lock()
        self._carried: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until a signal comes, or until the first worker can't load its models."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        keepers = [asyncio.create_task(self._keep(n)) for n in range(self._serving.workers)]
        await self._stopping.wait()
        self._listener.close()  # or new connections would wait in vain until all workers have gone
        await asyncio.gather(*keepers)
        if self._failure:
            raise InputError(self._failure)

    async def _keep(self, number: int) -> None:
        """A worker in this place, always."""
        while not self._stopping.is_set():
            try:
                member = await self._start(number)
            except LaunchError as error:
                self._failed(number, str(error))
                await asyncio.sleep(PAUSE)
                continue
            following = asyncio.create_task(self._follow(member))
            stopping = asyncio.create_task(self._stopping.wait())
            gone = asyncio.create_task(member.process.wait())
            await asyncio.wait((gone, stopping), return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                await self._end(member, gone)
            stopping.cancel()
            await following
            member.channel.close()
            self._members.pop(number, None)
            self._starting.discard(member)
            for future in member.tasks.values():
                future.cancel()
            if not self._stopping.is_set():
                log.warning("worker %d ended (%s); another one starts", number, gone.result())
                if not member.ready:
                    await asyncio.sleep(PAUSE)

    async def _start(self, number: int) -> _Member:
        ours, theirs = socket.socketpair()
        descriptors = (self._listener.fileno(), theirs.fileno())
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "farandole.serving.worker",
                *map(str, descriptors), str(number),
                pass_fds=descriptors, stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            theirs.close()
            raise LaunchError(f"A worker can't be started: {error}") from error
        theirs.close()
        channel = await Channel.of(ours)
        member = _Member(number, process, channel)
        async with self._changes:  # it either knows of a change, or hears of it later
            self._starting.add(member)
            unloaded = sorted(self._unloaded)
            channel.send(kind="start", serving=self._serving.to_json(), unloaded=unloaded)
        return member

    async def _end(self, member: _Member, gone: asyncio.Task[int]) -> None:
        """Let it finish its requests; what takes longer than allowed is ended."""
        if member.process.returncode is None:
            member.process.terminate()
        await asyncio.wait((gone,), timeout=self._serving.drain + 5)
        if member.process.returncode is None:
            member.process.kill()
            await gone

    async def _follow(self, member: _Member) -> None:
        """All that a worker says, until it has gone."""
        while (message := await member.channel.receive()) is not None:
            match message["kind"]:
                case "ready":
                    self._ready(member, message["models"])
                case "failed":
                    self._failed(member.number, message["error"])
                case "everywhere":
                    task = asyncio.create_task(self._everywhere(member, message))
                    self._carried.add(task)
                    task.add_done_callback(self._carried.discard)
                case "performed":
                    future = member.tasks.pop(message["task"], None)
                    if future is not None and not future.done():
                        future.set_result(message["answer"])

    def _failed(self, number: int, error: str) -> None:
        """Before the first requests, that is the end; later, it is tried again."""
        if not self._told and not self._stopping.is_set():
            self._failure = error
            self._stopping.set()
        log.error("worker %d can't start: %s", number, error)

    def _ready(self, member: _Member, models: list[str]) -> None:
        member.ready = True
        self._starting.discard(member)
        self._members[member.number] = member
        for action, name in member.missed:
            self._ask(member, action, name)
        if self._told or self._stopping.is_set():
            return
        if len(self._members) == self._serving.workers:
            self._told = True
            own = self._serving
            grpc = None if own.grpc_port is None else joined(own.host, own.grpc_port)
            self._say(told(own, address_of(self._listener, own.tls), grpc, models))

    async def _everywhere(self, asking: _Member, message: dict[str, Any]) -> None:
        """Have all workers do something, and give their answers to the one that asked."""
        action, name = message["action"], message["name"]
        if action == "metrics":
            answers, _ = await self._all(action, name, METRICS)
        else:
            async with self._changes:
                for member in self._starting:
                    member.missed.append((action, name))
                answers, silent = await self._all(action, name, LOADING)
                if all(one["status"] == 200 for one in answers):
                    change = self._unloaded.discard if action == "load" else self._unloaded.add
                    change(name)
                answers += [_SILENT] * silent  # they do it later
        asking.channel.send(kind="answers", call=message["call"], answers=answers)

    async def _all(
        self, action: str, name: str, seconds: float
    ) -> tuple[list[dict[str, Any]], int]:
        """The answers of those that answer in time, and how many don't; who dies isn't asked."""
        futures = [self._ask(member, action, name) for member in list(self._members.values())]
        if not futures:
            return [], 0
        done, waiting = await asyncio.wait(futures, timeout=seconds)
        found = [one.result() for one in futures if one in done and not one.cancelled()]
        return found, len(waiting)

    def _ask(self, member: _Member, action: str, name: str) -> asyncio.Future[dict[str, Any]]:
        """Have one worker do something."""
        self._tasks += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        member.tasks[self._tasks] = future
        member.channel.send(kind="perform", task=self._tasks, action=action, name=name)
        return future
