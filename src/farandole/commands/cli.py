"""The command line: which command is meant, and what its end means."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from farandole import __version__
from farandole.commands.exit_codes import EXIT_CODES, FAILED, INTERRUPTED, WRONG
from farandole.commands.messages import for_command_line
from farandole.commands.parser import CommandParser
from farandole.errors import FarandoleError, InputError, WorkerFailed, suggestion

COMMANDS = {
    "train": "train a network on Parquet files, and save it; no Spark",
    "predict": "apply a network to the rows of files, or to photos; no Spark",
    "serve": "answer requests for saved networks over HTTP; no Spark",
    "plan": "price every strategy on many workers, by simulation",
    "explain": "show a ring, a pipeline, backpropagation … step by step",
    "doctor": "check this machine, Spark and its workers",
    "demo": "train on Iris and digits, in half a minute",
}
"""What there is: each is a file of this folder, with `add_options(parser)` and `run(options)`."""

_WRONG_FILE = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and give its exit code.

    >>> main(["explian"])  # says on stderr: There is no command 'explian'. Did you mean 'explain'?
    2
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    try:
        if not given or given[0].startswith("-"):
            parser.parse_args(given)
            parser.print_help()
            return WRONG
        name, *rest = given
        run, parser = find_command(name)
        with _warnings_in_words(parser):
            return run(parser.parse_args(rest))
    except KeyboardInterrupt:
        _say("interrupted", parser)
        return INTERRUPTED
    except FarandoleError as error:
        reason, message = _root_cause(error)
        _say(message, parser)
        return WRONG if isinstance(reason, InputError) else FAILED
    except BrokenPipeError:  # somebody has read enough: farandole explain ring | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        where = f"{str(error.filename)!r}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}", parser)
        return WRONG if isinstance(error, _WRONG_FILE) else FAILED


def find_command(name: str) -> tuple[Callable[[argparse.Namespace], int], CommandParser]:
    """The function of a command, and the parser of its options; only its own file is imported.

    >>> run, parser = find_command("doctor")
    >>> parser.prog, "--master" in parser.options
    ('farandole doctor', True)
    """
    if name not in COMMANDS:
        raise InputError(f"There is no command {name!r}. {suggestion(name, COMMANDS)}")
    command: Any = import_module(f"farandole.commands.{name}")
    parser = CommandParser(
        prog=f"farandole {name}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_options(parser)
    return command.run, parser


def _parser() -> CommandParser:
    commands = "\n".join(f"  {name:<9} {about}" for name, about in COMMANDS.items())
    codes = "\n".join(f"  {code:<9} {meaning}" for code, meaning in EXIT_CODES.items())
    parser = CommandParser(
        prog="farandole",
        usage="farandole COMMAND [options]",
        description="Neural networks where the data already is: in Spark.",
        epilog=f"commands:\n{commands}\n\nfarandole COMMAND --help tells its options.\n\n"
        f"exit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"farandole {__version__}")
    return parser


def _say(message: str, parser: CommandParser) -> None:
    print(f"farandole: {for_command_line(message, parser.options)}", file=sys.stderr)


def _root_cause(error: FarandoleError) -> tuple[FarandoleError, str]:
    """The error that counts, and a sentence; a traceback only for what nobody foresaw."""
    cause = error.__cause__
    if isinstance(error, WorkerFailed) and isinstance(cause, FarandoleError):
        return cause, f"rank {error.rank}: {cause}"
    return error, str(error)


@contextmanager
def _warnings_in_words(parser: CommandParser) -> Iterator[None]:
    """A warning is a sentence as well, without the line of code that it comes from."""

    def show(message: Warning | str, *_: Any) -> None:
        _say(str(message), parser)

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield
