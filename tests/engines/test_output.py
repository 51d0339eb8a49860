from __future__ import annotations

import logging
import sys
from contextlib import suppress

import pytest

from farandole.engines.output import Output, output_to


class RememberingLink:
    """A link that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def tell(self, message: object) -> None:
        self.told.append(message)

    def stop_requested(self) -> bool:
        return False


def test_whole_lines_go_to_the_driver_the_last_one_too() -> None:
    link = RememberingLink()
    with output_to(link):
        print("one", 1)
        sys.stdout.write("two\nthr")
        print("error", file=sys.stderr)
        print("ee", end="")
    assert link.told == [
        Output("stdout", "one 1"),
        Output("stdout", "two"),
        Output("stderr", "error"),
        Output("stdout", "three"),
    ]


def test_a_progress_bar_is_one_line_as_it_was_last() -> None:
    link = RememberingLink()
    with output_to(link):
        for percent in range(101):
            sys.stderr.write(f"\r{percent} %")
        sys.stderr.write("\n")
        print("windows\r")
    assert link.told == [Output("stderr", "100 %"), Output("stdout", "windows")]


def test_an_error_ends_the_redirection_and_keeps_what_was_printed() -> None:
    link, before = RememberingLink(), sys.stdout
    with suppress(KeyError), output_to(link):
        print("last words", end="")
        raise KeyError
    assert sys.stdout is before
    assert link.told == [Output("stdout", "last words")]


def test_a_logger_of_the_first_run_speaks_to_the_second() -> None:
    first, second = RememberingLink(), RememberingLink()
    logger = logging.getLogger("farandole.tests.output")
    logger.propagate = False
    with output_to(first):
        logger.addHandler(logging.StreamHandler())
        logger.warning("one")
    with output_to(second):
        logger.warning("two")
    assert first.told == [Output("stderr", "one")]
    assert second.told == [Output("stderr", "two")]


def test_between_runs_it_goes_to_the_processs_own_log(capfd: pytest.CaptureFixture[str]) -> None:
    link = RememberingLink()
    with output_to(link):
        held = sys.stdout
    print("nobody listens", file=held, flush=True)
    assert link.told == []
    assert capfd.readouterr().err == "nobody listens\n"
