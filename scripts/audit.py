"""Looks the pins of constraints.txt up among known vulnerabilities, with pip-audit.

    python scripts/audit.py

Exits with 1 if a pinned release has a known vulnerability. Where no vulnerability data can be
reached, it says so and exits with 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# pip-audit also reports "no known vulnerabilities" where an index answers "not found" to each
# question. So it is first asked about a release whose vulnerabilities everybody knows.
KNOWN = "jinja2==2.10\n"
PROBE_SECONDS, AUDIT_SECONDS = 20, 300


def audited(requirements: Path, seconds: float) -> list[dict[str, Any]] | None:
    """What pip-audit knows about each requirement; None where it could not ask in time."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(requirements)]
    command += ["--no-deps", "--disable-pip", "--format=json", "--progress-spinner=off"]
    command += ["--timeout", str(PROBE_SECONDS // 2)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        dependencies: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
        return dependencies
    except (subprocess.TimeoutExpired, json.JSONDecodeError, KeyError):
        return None


def has_data() -> bool:
    """Whether vulnerability data can be reached."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as probe:
        probe.write(KNOWN)
        probe.flush()
        found = audited(Path(probe.name), PROBE_SECONDS)
    return any(one.get("vulns") for one in found or ())


def main() -> int:
    found = audited(ROOT / "constraints.txt", AUDIT_SECONDS) if has_data() else None
    if found is None:
        print("pip-audit skipped: no vulnerability data can be reached")
        return 0
    for one in found:
        for hole in one.get("vulns", ()):
            fixed = ", ".join(hole["fix_versions"]) or "no release yet"
            print(f"{one['name']} {one['version']}: {hole['id']}, fixed in {fixed}")
        if "skip_reason" in one:
            print(f"{one['name']} was not looked up: {one['skip_reason']}")
    vulnerable = sum(bool(one.get("vulns")) for one in found)
    print(f"pip-audit: {len(found)} packages, {vulnerable} with known vulnerabilities")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
