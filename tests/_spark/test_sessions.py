"""Sessions, as far as they can be tested without one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from tests._spark.connect import Connect

from farandole import _spark
from farandole.errors import InputError


def test_a_stopped_session_is_refused() -> None:
    session: Any = Connect()
    session.is_stopped = False
    _spark.check_running(session)
    session.is_stopped = True
    with pytest.raises(InputError, match="session has been stopped"):
        _spark.check_running(session)


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[2]", True),
        ("local[*]", True),
        ("local[2,3]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
        ("", False),
    ],
)
def test_which_masters_are_local(master: str, local: bool) -> None:
    session: Any = Connect(spark_master=master)
    assert _spark.is_local(session) is local


def test_looking_for_a_session_imports_and_starts_nothing() -> None:
    code = (
        "import sys; from farandole import _spark; assert _spark.active_session() is None; "
        "assert not _spark.is_dataframe([1]); print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
