from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farandole import freed_memory

# In a process that has allocated next to nothing, so that only this decides where blocks lie.
START = """
import ctypes, importlib.util, json, resource, sys

spec = importlib.util.spec_from_file_location("freed_memory", sys.argv[1])
freed_memory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(freed_memory)
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
c.free.argtypes = [ctypes.c_void_p]
"""

BLOCKS = """
def is_mapped(address):
    ranges = [line.split()[0].split("-") for line in open("/proc/self/maps")]
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)

def stays_after_free(wanted):
    if not freed_memory.give_back_large_blocks(wanted):
        return None
    # Of two blocks in one heap, the upper one keeps the lower one from being cut off at its end.
    lower, upper = sorted(c.malloc(16 << 20) for _ in range(2))
    assert is_mapped(lower + (8 << 20))
    c.free(lower)
    found = is_mapped(lower + (8 << 20))
    c.free(upper)
    return found

print(json.dumps([stays_after_free(True), stays_after_free(False)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_blocks_are_gone() -> None:
    given_back, as_usual = _printed_by(START + BLOCKS)
    if given_back is None:
        pytest.skip("this malloc has no such choice")
    assert given_back is False
    assert as_usual is True


STEPS = """
def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [c.malloc(16 << 20) for _ in range(6)]
    for block in blocks:
        ctypes.memset(block, 1, 16 << 20)
    for block in blocks:
        c.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def of_a_later_step():
    new_pages()
    return new_pages()

with freed_memory.freed_memory_kept():
    kept = of_a_later_step()
print(json.dumps([kept, of_a_later_step()]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages")
def test_a_step_takes_what_the_last_one_has_freed() -> None:
    kept, as_usual = _printed_by(START + STEPS)
    if freed_memory._glibc() is None:
        pytest.skip("this malloc has no such choice")
    assert kept < 100  # of 24,576
    assert as_usual > 1000


def _printed_by(code: str) -> Any:
    command = [sys.executable, "-c", code, str(Path(freed_memory.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)
