"""The driver's link with more strangers than the driver may have files."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

CROWD = 1100

BEFORE = f"""
import resource, socket, subprocess, sys, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from farandole.engines.driver_link import DriverEndpoint, DriverLink

crowd = '''
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
place = "127.0.0.1", int(sys.argv[1])
silent = [socket.create_connection(place, 60) for _ in range({CROWD})]
print(len(silent), flush=True)
sys.stdin.read()
'''
heard = []
with DriverEndpoint("127.0.0.1", lambda rank, message: heard.append((rank, message))) as endpoint:
    command = [sys.executable, "-c", crowd, str(endpoint.address.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as silent:
        assert int(silent.stdout.readline()) == {CROWD}
        links = [DriverLink(rank, endpoint.address, timeout=60) for rank in range(4)]
        for link in links:
            link.tell("result")
            assert link.is_received(60)
            link.close()
        silent.stdin.close()
assert sorted(heard) == [(rank, "result") for rank in range(4)], heard
"""

DURING = f"""
import os, resource, socket
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
import farandole

def wait_until_refused(connection):
    while connection.recv(4096):
        pass

def crowded(driver):
    import psutil, torch, torch.distributed as dist
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    ports = [c.laddr.port for c in psutil.Process(driver).net_connections() if c.status == "LISTEN"]
    silent = []
    if farandole.current_world().rank == 0:
        crowd = ports * {CROWD // 2}
        silent = [socket.create_connection(("127.0.0.1", port), 60) for port in crowd]
        for first in silent[:2]:  # of either port
            wait_until_refused(first)
    dist.barrier()
    crowded.silent = silent  # to the end of the process
    return len(ports), len(silent)

found = farandole.run(crowded, (os.getpid(),), num_workers=2, engine="local")
assert found == [(2, {CROWD}), (2, 0)], found  # the link, and the heartbeats
"""


@pytest.mark.parametrize("script", [BEFORE, DURING], ids=["before", "during"])
@pytest.mark.attack("1,100 silent connections at the driver's link", "no result is lost")
def test_a_crowd_of_silent_ones_costs_no_result(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    notices = [line for line in done.stderr.splitlines() if "was refused" in line]
    assert len(notices) == 1, done.stderr
    assert "a connection from 127.0.0.1 was refused: too many connect and say nothing" in notices[0]
