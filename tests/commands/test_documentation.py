"""Every call of the command line that the documentation shows is one that its parser takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from farandole.commands.cli import COMMANDS, find_command
from farandole.commands.exit_codes import EXIT_CODES

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]


def calls() -> list[tuple[str, str]]:
    """Page and call: a line of a block, or code in a line that has an option."""
    found = []
    for page in PAGES:
        text = re.sub(r"\\\n\s*", "", page.read_text())
        for line in re.findall(r"^farandole (.*)$|`farandole ([^`\n]* --[^`\n]*)`", text, re.M):
            found.append((page.name, line[0] or line[1]))
    return [(page, call) for page, call in found if not re.search("…|COMMAND", call)]


@pytest.mark.parametrize(("page", "call"), calls())
def test_a_call_of_the_documentation_is_understood(page: str, call: str) -> None:
    name, *options = shlex.split(call, comments=True)
    _, parser = find_command(name)
    if "--help" in options:
        return
    for action in parser.options.values():
        action.required = False  # a fragment may leave it out
    parser.parse_args(options)


def test_the_guide_has_all_commands_and_exit_codes() -> None:
    text = (ROOT / "docs" / "guide" / "command-line.md").read_text()
    assert all(f"| `{name}` |" in text for name in COMMANDS)
    assert all(f"| {code} | {meaning}" in text for code, meaning in EXIT_CODES.items())
