"""Several hosts on this machine, whose cables a test can pull: network namespaces and a switch.

    with hosts(2) as (first, second):        # root, on Linux
        subprocess.run(first.command("ping", "-c", "1", second.address))
        second.pull_cable()

They share this machine's disks and process ids. Their addresses exist nowhere else.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NETWORK = "10.77.0"
_SETTINGS = Path("/etc/netns")
"""Where `ip netns exec` looks for files that a host has in the place of this machine's."""


class NoHosts(Exception):
    """This machine doesn't allow network namespaces."""


@dataclass(frozen=True)
class Host:
    """A network namespace with one interface, and the switch that it is connected to."""

    name: str
    address: str
    switch: str
    port: str
    """The interface at the switch's end of the cable."""

    def command(self, *words: str) -> list[str]:
        """The command that runs `words` on this host."""
        return ["ip", "netns", "exec", self.name, *words]

    def pull_cable(self) -> None:
        """From now on nothing comes in or goes out; nobody is told."""
        _ip("-n", self.switch, "link", "set", self.port, "down")

    def plug_cable(self) -> None:
        """Connect the host again."""
        _ip("-n", self.switch, "link", "set", self.port, "up")


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many hosts that know each other by name; raises `NoHosts` where that isn't allowed.

    At the end everything that runs on them is killed.
    """
    prefix = f"farandole{os.getpid()}"
    switch = f"{prefix}s"
    made = [
        Host(f"{prefix}h{number}", f"{NETWORK}.{number}", switch, f"port{number}")
        for number in range(1, count + 1)
    ]
    try:
        _make_switch(switch)
        for host in made:
            _connect(host, made)
        yield made
    finally:
        for host in made:
            _kill_processes(host.name)
        for name in (*(host.name for host in made), switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(_SETTINGS / name, ignore_errors=True)


def _make_switch(name: str) -> None:
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "bridge", "type", "bridge")
        _ip("-n", name, "link", "set", "bridge", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or error
        raise NoHosts(f"no network namespaces here: {said}".strip()) from error


def _connect(host: Host, everybody: list[Host]) -> None:
    _ip("netns", "add", host.name)
    names = ["127.0.0.1 localhost", *(f"{each.address} {each.name}" for each in everybody)]
    (_SETTINGS / host.name).mkdir(parents=True)
    (_SETTINGS / host.name / "hosts").write_text("\n".join(names) + "\n")
    cable = ["type", "veth", "peer", "name", "eth0", "netns", host.name]
    _ip("-n", host.switch, "link", "add", host.port, *cable)
    _ip("-n", host.switch, "link", "set", host.port, "master", "bridge", "up")
    _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
    for interface in ("lo", "eth0"):
        _ip("-n", host.name, "link", "set", interface, "up")


def _kill_processes(name: str) -> None:
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, check=False)
    for pid in found.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)
