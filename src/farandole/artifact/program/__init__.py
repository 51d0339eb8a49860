"""Exported programs: a stranger's file is read and checked before torch sees anything of it."""

from farandole.artifact.program.exported import (
    Program,
    check_exportable,
    read_program,
    to_program,
    write_program,
)

__all__ = ["Program", "check_exportable", "read_program", "to_program", "write_program"]
