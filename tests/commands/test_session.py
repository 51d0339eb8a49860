"""Sessions that can't be opened: known at once, in a sentence, without a JVM."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import pytest

from farandole.commands import doctor, main
from farandole.commands.session import check_answers, silent_stderr, within
from farandole.errors import LaunchError


@pytest.mark.parametrize("option", ["--master=spark://127.0.0.1:1", "--remote=sc://127.0.0.1:1"])
def test_a_dead_address_is_one_sentence_and_takes_no_time(
    option: str, capfd: pytest.CaptureFixture[str]
) -> None:
    start = time.perf_counter()
    assert main(["doctor", option]) == 1
    said = capfd.readouterr()
    last = said.out.splitlines()[-2:]
    assert last[0] == "NO  Spark        nothing answers at 127.0.0.1:1 (Connection refused)"
    assert last[1] == "    → Check --master or --remote"
    assert said.err == ""
    assert time.perf_counter() - start < 60


def test_one_master_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_answers(f"spark://127.0.0.1:1,127.0.0.1:{port}")
        check_answers(f"sc://127.0.0.1:{port}/;user_id=me")


@pytest.mark.parametrize("address", ["local[2]", "yarn", "k8s://https://host:443", ""])
def test_only_addresses_of_spark_s_own_are_tried(address: str) -> None:
    check_answers(address)


def test_a_wrong_port_is_a_sentence() -> None:
    with pytest.raises(LaunchError, match="nothing answers at host:many"):
        check_answers("spark://host:many")


def test_what_takes_too_long_is_left_to_itself() -> None:
    def sleep() -> Any:
        time.sleep(30)

    with pytest.raises(LaunchError, match=r"there is no session after 0\.05 s"):
        within(0.05, sleep)


def test_after_a_time_out_stderr_is_heard_again(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def start_a_jvm() -> Any:
        os.write(2, b"WARN\n")
        ended.wait(30)

    monkeypatch.setattr(doctor, "SESSION_SECONDS", 0.2)
    [found] = doctor.check_cluster(start_a_jvm)
    os.write(2, b"seen\n")
    ended.set()
    assert found.detail == "there is no session after 0.2 s"
    assert capfd.readouterr().err == "seen\n"


def test_an_error_comes_through_as_it_is() -> None:
    def refuse() -> Any:
        raise KeyError("no route")

    with pytest.raises(KeyError, match="no route"):
        within(10, refuse)


def test_what_a_jvm_says_is_not_seen(capfd: pytest.CaptureFixture[str]) -> None:
    with silent_stderr():
        os.write(2, b"WARN StandaloneAppClient: Failed to connect to master\n")
    os.write(2, b"seen\n")
    assert capfd.readouterr().err == "seen\n"
