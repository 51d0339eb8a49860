"""The parser of every command: options by their whole names, and advice where a call is wrong."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from farandole.errors import InputError, suggestion

# What argparse says, and what is said here.
_REWORDED = (
    (r"argument ([^:]+): expected .*", r"\1 needs a value."),
    (r"argument ([^:]+): not allowed with argument (.+)", r"\1 and \2 don't go together."),
    (r"argument ([^:]+): ignored explicit argument (.+)", r"\1 takes no value. Received: \2"),
    (r"argument ([^:]+): must (.+)", r"\1 must \2"),
    (r"the following arguments are required: (.+)", r"Missing: \1."),
    (r"unrecognized arguments: (.+)", r"Nothing can be done with: \1"),
)


class CommandParser(argparse.ArgumentParser):
    """Raises `InputError` for a call that is wrong, and knows options by their whole names only.

    >>> parser = CommandParser(prog="farandole train")
    >>> _ = parser.add_argument("--epochs", type=whole_number)
    >>> parser.parse_args(["--epoch", "3"])
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: There is no option --epoch. Did you mean --epochs?
    >>> parser.parse_args(["--epochs", "three"])
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: --epochs must be a whole number. Received: 'three'
    """

    def __init__(self, **options: Any) -> None:
        # By default argparse takes --epoch for --epochs, until there is an --epoch-size as well.
        super().__init__(allow_abbrev=False, **options)

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse a call; an unknown option is told before a missing one."""
        for word in args:
            if word == "--":
                break
            option = word.partition("=")[0]
            if word.startswith("--") and option not in self.options and " " not in option:
                known = [name for name in self.options if name.startswith("--")]
                advice = suggestion(option, known).replace("'", "")
                raise InputError(f"There is no option {option}. {advice}")
        return super().parse_args(args, namespace)

    @property
    def options(self) -> dict[str, argparse.Action]:
        """All options by name: --output, -h …"""
        return self._option_string_actions

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in the words of the other errors."""
        for pattern, words in _REWORDED:
            message, found = re.subn(f"^{pattern}$", words, message, flags=re.DOTALL)
            if found:
                break
        raise InputError(message)


def whole_number(text: str) -> int:
    """What an option takes: 3."""
    try:
        return int(text)
    except ValueError:
        raise _refusal("a whole number", text) from None


def number(text: str) -> float:
    """What an option takes: 0.5."""
    try:
        return float(text)
    except ValueError:
        raise _refusal("a number", text) from None


def auto_or_number(text: str) -> int | str:
    """A number, or the word for letting the program choose."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise _refusal("a whole number or auto", text) from None


def whole_numbers(text: str) -> tuple[int, ...]:
    """Numbers between commas: 3,224,224."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise _refusal("whole numbers between commas, such as 3,224,224", text) from None


def numbers(text: str) -> list[float]:
    """Numbers between commas: 0.5,2."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise _refusal("numbers between commas, such as 0.5,2", text) from None


def names(text: str) -> list[str]:
    """Names between commas; the word for none of them.

    >>> names("sepal, petal"), names("none")
    (['sepal', 'petal'], [])
    """
    return [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]


def pairs(text: str) -> dict[str, Any]:
    """Names with values, between commas.

    >>> pairs("momentum=0.9,nesterov=true")
    {'momentum': 0.9, 'nesterov': True}
    """
    found = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not (equals and name.strip()):
            raise _refusal("names with values, such as momentum=0.9,nesterov=true", text)
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _refusal(wanted: str, text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"must be {wanted}. Received: {text!r}")
