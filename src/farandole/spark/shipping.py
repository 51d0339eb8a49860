"""ship(), daemon_settings(): what executors that don't have farandole are sent."""

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
from farandole.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = Path(__file__).resolve().parent.parent
_TIME = (1980, 1, 1, 0, 0, 0)


def ship(session: SparkSession | None = None) -> str:
    """Send this farandole to the Python workers of a session, classic or Connect; gives its name.

    Tasks that start from now on find it. What farandole needs (torch, pyarrow, pandas) has to be
    there, and stays where it is. A session's daemon starts before that: with `daemon_settings` it
    is then Spark's own, and `spark.python.daemon.module=farandole.daemon` can't start at all.

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


def daemon_settings() -> dict[str, str]:
    """Settings for a session whose Python workers have torch from the start, where that can be.

    Executors that have farandole load torch once, before they fork workers. Executors without it
    get Spark's own daemon: plain functions run there, and `ship` can bring farandole later. If the
    session has `spark.files` of its own, join both with a comma.

    >>> sorted(daemon_settings())
    ['spark.files', 'spark.python.daemon.module']
    >>> builder = SparkSession.builder.config(map=daemon_settings())  # doctest: +SKIP
    """
    path = _PACKAGE.parent / "farandole_daemon.py"
    if not path.is_file():
        raise InputError(
            f"There is no {path}, which is installed with farandole: install farandole with pip, "
            "or put that file next to its folder."
        )
    return {"spark.python.daemon.module": "farandole_daemon", "spark.files": str(path)}


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
