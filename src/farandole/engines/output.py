"""What a worker prints, on its way to the driver."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from farandole.engines.channel import Output
from farandole.world import Link


class Lines(io.TextIOBase):
    """A text stream that hands whole lines to the driver, and to this process when there is none.

    One object serves all runs of a process: a logger that took hold of it in the first run
    still speaks to the driver in the second.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._rest = ""

    def writable(self) -> bool:
        """It is there to be written to."""
        return True

    def write(self, text: str) -> int:
        """Pass on the lines that are whole now."""
        with self._lock:
            if self._link is None:
                (sys.__stderr__ or io.StringIO()).write(text)
                return len(text)
            *lines, rest = (self._rest + text).split("\n")
            self._rest = _overwritten(rest)
            for line in lines:
                self._link.tell(Output(self._name, _overwritten(line).rstrip("\r")))
        return len(text)

    @contextmanager
    def going_to(self, link: Link) -> Iterator[None]:
        """Write to `link` for the body of a `with`; a last line without an end is sent too."""
        self._link = link
        try:
            yield
        finally:
            if self._rest:
                self.write("\n")
            self._link = None


def _overwritten(line: str) -> str:
    """What a terminal would show: a progress bar returns to the start of its line."""
    shown = line.rstrip("\r")
    return line[shown.rfind("\r") + 1 :]


_out, _err = Lines("stdout"), Lines("stderr")


@contextmanager
def output_to(link: Link) -> Iterator[None]:
    """Send what the body prints to the driver."""
    with (
        _out.going_to(link),
        _err.going_to(link),
        redirect_stdout(_out),
        redirect_stderr(_err),
    ):
        yield
