"""A table in a file that other processes map; it vanishes with this process, however that ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from farandole.data.scratch import explain_shortage, megabytes, scratch_file, scratch_folder


@contextmanager
def table_file(table: pa.Table) -> Iterator[str]:
    """Write a table to a file, and give a path by which this user's processes can map it here.

    The file has no name of its own. The path leads through this process to it: who has opened it
    keeps it, and nothing is left even if all of them are killed. Where there is no such path (on
    other systems than Linux), the file is in a private folder that is removed at the end.

    >>> with table_file(pa.table({"x": [1, 2]})) as path:
    ...     pa.ipc.open_file(pa.memory_map(path)).read_all().num_rows
    2
    """
    folder = scratch_folder()
    with scratch_file(folder) as file:
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        if _is_the_same(path, file.fileno()):
            write_table(table, path, folder)
            yield path
            return
    with tempfile.TemporaryDirectory(prefix="farandole-", dir=folder) as private:
        path = os.path.join(private, "table.arrow")
        write_table(table, path, folder)
        yield path


def write_table(table: pa.Table, path: str, folder: str | None = None) -> None:
    """Write a table to a file of Arrow's format that is in `folder`."""
    where = os.path.dirname(path) if folder is None else folder
    with (
        explain_shortage(where, lambda: f"a table of {megabytes(table.nbytes)} for the workers"),
        pa.OSFile(path, "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)


def read_table(path: str) -> pa.Table:
    """A table in such a file; its rows are mapped, so that processes share them."""
    return pa.ipc.open_file(pa.memory_map(path)).read_all()


def _is_the_same(path: str, descriptor: int) -> bool:
    """Whether a path leads to an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False
