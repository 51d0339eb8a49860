from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.parallel import allocator

# In a process that has allocated next to nothing, so that only this decides where blocks lie.
CODE = """
import ctypes, importlib.util, json, sys

spec = importlib.util.spec_from_file_location("allocator", sys.argv[1])
allocator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(allocator)
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
c.free.argtypes = [ctypes.c_void_p]

def is_mapped(address):
    ranges = [line.split()[0].split("-") for line in open("/proc/self/maps")]
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)

def stays_after_free(wanted):
    if not allocator.give_back_large_blocks(wanted):
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
    command = [sys.executable, "-c", CODE, str(Path(allocator.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    given_back, as_usual = json.loads(done.stdout)
    if given_back is None:
        pytest.skip("this malloc has no such choice")
    assert given_back is False
    assert as_usual is True
