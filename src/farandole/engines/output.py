"""What a worker prints, on its way to the driver."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass

from farandole.world import Link


@dataclass(frozen=True)
class Output:
    """A line that a worker printed."""

    stream: str
    text: str


class LineStream(io.TextIOBase):
    """A text stream that sends whole lines to the driver; to stderr when there is no link.

    One object serves all runs of a process: a logger that keeps the stream of the first run
    still writes to the driver in the second.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._rest = ""

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, text: str) -> int:
        """Pass on the lines that are whole now."""
        with self._lock:
            if self._link is None:
                (sys.__stderr__ or io.StringIO()).write(text)
                return len(text)
            *lines, rest = (self._rest + text).split("\n")
            self._rest = _as_shown(rest)
            for line in lines:
                self._link.tell(Output(self._name, _as_shown(line).rstrip("\r")))
        return len(text)

    @contextmanager
    def sent_to(self, link: Link) -> Iterator[None]:
        """Write to `link` for the body of a `with`; a last line without an end is sent too."""
        self._link = link
        try:
            yield
        finally:
            if self._rest:
                self.write("\n")
            self._link = None


def _as_shown(line: str) -> str:
    """What a terminal would show: a progress bar returns to the start of its line."""
    shown = line.rstrip("\r")
    return line[shown.rfind("\r") + 1 :]


_out, _err = LineStream("stdout"), LineStream("stderr")


@contextmanager
def output_to(link: Link) -> Iterator[None]:
    """Send what the body prints to the driver."""
    with (
        _out.sent_to(link),
        _err.sent_to(link),
        redirect_stdout(_out),
        redirect_stderr(_err),
    ):
        yield
