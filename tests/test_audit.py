"""scripts/audit.py where no vulnerability data can be reached."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "scripts" / "audit.py"


def test_without_data_it_says_so_and_does_not_fail() -> None:
    nobody = "http://127.0.0.1:9"  # a port that nobody listens on
    environ = {**os.environ, "HTTPS_PROXY": nobody, "https_proxy": nobody, "NO_PROXY": ""}
    done = subprocess.run(
        [sys.executable, FILE], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout == "pip-audit skipped: no vulnerability data can be reached\n"
