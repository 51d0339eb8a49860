from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys, torch
from farandole.parallel.allocator import give_back_large_blocks

def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

if not give_back_large_blocks(sys.argv[1] == "True"):
    print(-1)
    sys.exit()
before, small = megabytes(), []
for _ in range(3):
    large = []
    for _ in range(20):
        large.append(torch.ones(9 << 18))
        small.append(torch.ones(10))  # in between, so that the heap can't shrink
    del large
print(megabytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_blocks_are_gone() -> None:
    kept = {}
    for wanted in (True, False):
        command = [sys.executable, "-c", CODE, str(wanted)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        kept[wanted] = float(done.stdout)
    if kept[True] < 0:
        pytest.skip("this malloc has no such choice")
    assert kept[True] < 6 < kept[False], kept
