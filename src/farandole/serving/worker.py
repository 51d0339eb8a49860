"""A worker process of a server with several: `python -m farandole.serving.worker FD FD NUMBER`.

Its settings come over the channel to its supervisor, never in its arguments, which all users of a
machine can read.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import Any

from farandole.serving.app import App
from farandole.serving.control import Channel
from farandole.serving.garbage import memory_for_requests, spare_collections
from farandole.serving.serve import Serving, limit_threads, log_to_stderr
from farandole.serving.server import make_server


class Worker:
    """Serves, asks its supervisor for what is to happen in all workers, and does its part of it."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._waiting: dict[int, asyncio.Future[list[dict[str, Any]]]] = {}
        self._calls = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, listener: socket.socket) -> int:
        """Load, say so, and serve until the signal comes or the supervisor has gone."""
        first = await self._channel.receive()
        if first is None:
            return 1
        serving = Serving.from_json(first["serving"])
        limit_threads(serving.workers)
        app = serving.app()
        app.everywhere = self._everywhere
        app.after_change = spare_collections
        server = make_server(app, serving.tls, serving.drain)
        try:
            await asyncio.to_thread(app.repository.load_all, first["unloaded"])
            app.is_ready = True
            await app.start()
        except Exception as error:
            self._channel.send(kind="failed", error=str(error))
            await asyncio.sleep(0.2)
            return 1
        spare_collections()
        listening = asyncio.create_task(self._listen(app, server))
        self._channel.send(kind="ready", models=list(app.repository.served))
        await server.serve(sockets=[listener])
        listening.cancel()
        return 0

    async def _everywhere(self, action: str, name: str) -> list[dict[str, Any]]:
        self._calls += 1
        number = self._calls
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._channel.send(kind="everywhere", call=number, action=action, name=name)
        try:
            found: list[dict[str, Any]] = await future
            return found
        finally:
            del self._waiting[number]

    async def _listen(self, app: App, server: Any) -> None:
        while (message := await self._channel.receive()) is not None:
            if message["kind"] == "perform":
                task = asyncio.create_task(self._perform(app, message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif message["kind"] == "answers" and message["call"] in self._waiting:
                self._waiting[message["call"]].set_result(message["answers"])
        server.should_exit = True  # nobody would end this worker any more

    async def _perform(self, app: App, message: dict[str, Any]) -> None:
        found = await app.perform(message["action"], message["name"])
        found["worker"] = self._number
        self._channel.send(kind="performed", task=message["task"], answer=found)


async def _main(listener: socket.socket, end: socket.socket, number: int) -> int:
    channel = await Channel.of(end)
    return await Worker(channel, number).run(listener)


def main(arguments: list[str]) -> int:
    """Run with the two sockets that were inherited."""
    log_to_stderr()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's
    # While models are loaded, there is nothing to finish. Later the server hears it, finishes, and
    # raises it again.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    listener, end = (socket.socket(fileno=int(one)) for one in arguments[:2])
    listener.setblocking(False)
    import uvloop

    try:
        factory = uvloop.new_event_loop
        with memory_for_requests(), asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(_main(listener, end, int(arguments[2])))
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # torch's threads may take their time
