"""Which files of a release scripts/pin.py lists."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

FILE = Path(__file__).resolve().parent.parent / "scripts" / "pin.py"


@pytest.fixture(scope="module")
def pin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pin", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("some_pkg-1.2-py3-none-any.whl", True),
        ("some_pkg-1.2-py2.py3-none-any.whl", True),
        ("some_pkg-1.2-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("some_pkg-1.2-cp313-cp313-macosx_11_0_arm64.whl", True),
        ("some_pkg-1.2-cp39-abi3-win_amd64.whl", True),
        ("some_pkg-1.2.tar.gz", True),
        ("some-pkg-1.2.tar.gz", True),
        ("some_pkg-1.2-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("some_pkg-1.2-cp313-cp313t-manylinux_2_28_x86_64.whl", False),
        ("some_pkg-1.2-pp311-pypy311_pp73-win_amd64.whl", False),
        ("some_pkg-1.2.1-py3-none-any.whl", False),
        ("some_pkg_more-1.2-py3-none-any.whl", False),
        ("some_pkg-1.2.exe", False),
    ],
)
def test_files_that_a_supported_python_could_install(
    pin: ModuleType, file: str, wanted: bool
) -> None:
    assert pin.is_wanted(f"/packages/ab/cd/{file}", "some-pkg", Version("1.2")) == wanted
