"""ship(): farandole itself, on its way to executors that don't have it."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from farandole import _spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = Path(__file__).resolve().parent.parent
_TIME = (1980, 1, 1, 0, 0, 0)


def ship(session: SparkSession | None = None) -> str:
    """Send this farandole to the Python workers of a session, classic or Connect; gives its name.

    Tasks that start from now on find it. What farandole needs (torch, pyarrow, pandas) has to be
    there, and stays where it is. A session's daemon starts before: this is not for
    `spark.python.daemon.module=farandole.daemon`.

    Args:
        session: by default the active one.

    >>> spark = SparkSession.builder.remote("sc://host").getOrCreate()  # doctest: +SKIP
    >>> ship(spark)  # doctest: +SKIP
    'farandole-2a26a2ae7e6f9a1c.zip'
    """
    found = session or _spark.require_session()
    _spark.check_running(found)
    content = _files()
    digest = hashlib.sha256(b"".join(name.encode() + data for name, data in content.items()))
    name = f"farandole-{digest.hexdigest()[:16]}.zip"
    path = _folder() / name
    if not path.exists():
        _write(path, content)
    _spark.distribute(found, str(path), python=True)
    return name


@cache
def _folder() -> Path:
    """For archives, until this process ends: executors that start later fetch them from here."""
    folder = tempfile.mkdtemp(prefix="farandole-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _files() -> dict[str, bytes]:
    """The files of the package, by their names in the archive."""
    paths = sorted(path for path in _PACKAGE.rglob("*") if path.is_file())
    kept = [path for path in paths if "__pycache__" not in path.parts]
    return {str(Path("farandole") / path.relative_to(_PACKAGE)): path.read_bytes() for path in kept}


def _write(path: Path, content: dict[str, bytes]) -> None:
    """The same bytes for the same files: Spark refuses another file of a name that it has."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED)
