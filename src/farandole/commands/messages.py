"""Errors of Python functions in the words of the command line: overwrite=True is --overwrite."""

from __future__ import annotations

import re
from collections.abc import Iterable

_VALUE = (
    r"""'[^']*'|"[^"]*"|\([^)]*\)|\[[^\]]*\]|\{[^}]*\}|[^\s,;:()]*[^\s,;:().?!]|(?=[\s.,)]|$)"""
)
_CALL = re.compile(r"farandole\.(train|predict|plan|explain)\((?:…,? ?)?([^()]*)\)")


def for_command_line(message: str, options: Iterable[str]) -> str:
    """Put options in place of the arguments that a message speaks of.

    Args:
        message: of an error or a warning.
        options: of the command, such as --batch-size: its argument is batch_size.

    >>> options = ["--overwrite", "--batch-size", "--epochs"]
    >>> for_command_line("'net' exists. Choose another path, or overwrite=True.", options)
    "'net' exists. Choose another path, or --overwrite."
    >>> for_command_line("batch_size must be a positive integer. Received: batch_size=0", options)
    '--batch-size must be a positive integer. Received: --batch-size 0'
    >>> for_command_line("There is no option 'epoch'. Did you mean 'epochs'?", options)
    "There is no option 'epoch'. Did you mean --epochs?"
    """
    known = {option.removeprefix("--").replace("-", "_"): option for option in options}
    message = _CALL.sub(lambda call: f"farandole {call[1]} {call[2]}".rstrip(), message)
    for name in sorted(known, key=len, reverse=True):
        message = _with_option(message, name, known[name])
    return _lists(message, known)


def _with_option(message: str, name: str, option: str) -> str:
    start = rf"(?<![\w.'\"/=-]){name}"
    message = re.sub(rf"{start}=(True|False)\b", lambda m: _switch(option, m[1]), message)
    message = re.sub(rf"{start}=({_VALUE})", lambda m: f"{option} {_plain(m[1])}".rstrip(), message)
    patterns = [
        # At the start of a sentence, where "epochs must be …" means the option.
        rf"((?<=\. )|^){name}(?= (?:must|can|has|have|needs|is for|are for)\b)",
        rf"(no option (?:'\w+'|--[\w-]+)\. Did you mean )'{name}'",
        rf"(option |trace only )'{name}'",
        rf"(only with ){name}\b",
    ]
    if "_" in name:  # no word of English
        patterns.append(rf"(){start}(?!\w)")
    for pattern in patterns:
        message = re.sub(pattern, rf"\1{option}", message)
    return message


def _switch(option: str, value: str) -> str:
    return option if value == "True" else f"--no-{option.removeprefix('--')}"


def _plain(value: str) -> str:
    """A value as one types it: without quotes, or between commas."""
    if value[:1] in "([" and value[:1]:
        value = value[1:-1].replace(", ", ",").rstrip(",")
    return value.replace("'", "").replace('"', "")


def _lists(message: str, known: dict[str, str]) -> str:
    """A list of what there is, if all of it are arguments."""

    def listed(found: re.Match[str]) -> str:
        words = found[1].split(", ")
        if not all(word in known for word in words):
            return found[0]
        return f"There are {', '.join(known[word] for word in words)}."

    return re.sub(r"There are ((?:\w+, )*\w+)\.", listed, message)
