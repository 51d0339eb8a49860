"""What can't be written is lost, and isn't kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from farandole.serving.access_log import AccessLog
from farandole.serving.reply import Reply, Request


async def nothing() -> dict[str, object]:
    return {}


def add_to(log: AccessLog) -> None:
    async def add() -> None:
        log.add(Request("GET", "/v2", {}, nothing), Reply(200, b"{}"), 0.001, b"one")

    asyncio.run(add())


def test_a_full_disk_costs_lines_but_neither_memory_nor_an_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = AccessLog("/dev/full")
    add_to(log)
    log.flush()
    assert "1 lines of the access log are lost: No space left" in caplog.text
    assert not log._lines
    add_to(log)
    log.close()


def test_lines_are_json(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "access.log"))
    add_to(log)
    log.close()
    (line,) = (tmp_path / "access.log").read_text().splitlines()
    said = json.loads(line)
    assert (said["request"], said["path"], said["status"]) == ("one", "/v2", 200)
