"""The command line: a file a command."""

from farandole.commands.cli import main

__all__ = ["main"]
