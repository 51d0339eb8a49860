"""Spark's random numbers: java.util.Random over a 64-bit xorshift, many lanes at a time.

A step of xorshift is linear over bits, so a 64×64 matrix of bits takes the state any number of
steps ahead. That cuts one long stream into lanes which start where they should and then step
together, as one array.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from farandole.errors import InputError

States = npt.NDArray[np.uint64]
_MASK = 0xFFFFFFFF
_ARRAY_SEED = 0x3C074A61  # scala.util.hashing.MurmurHash3.arraySeed


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """Give the first `count` numbers of [0, 1) that `XORShiftRandom(seed).nextDouble` would.

    Args:
        seed: any signed 64-bit number.
        count: how many numbers.

    >>> uniforms(1, 2).tolist() == uniforms(1, 100000)[:2].tolist()
    True
    """
    states = _stream(hashed(seed), 2 * count).reshape(count, 2)
    high = states[:, 0] & np.uint64((1 << 26) - 1)
    low = states[:, 1] & np.uint64((1 << 27) - 1)
    return ((high << np.uint64(27)) + low).astype(np.float64) * 2.0**-53


def hashed(seed: int) -> int:
    """Spread a seed over 64 bits, as XORShiftRandom does before it starts.

    >>> hashed(0) == hashed(1)
    False
    """
    try:
        data = struct.pack(">q", seed)
    except struct.error:
        raise InputError(f"seed must be a signed 64-bit number. Received: seed={seed!r}") from None
    low = murmur(data, _ARRAY_SEED)
    return murmur(data, low) << 32 | low


def murmur(data: bytes, seed: int) -> int:
    """MurmurHash3 (x86, 32 bits) of a whole number of 4-byte words.

    >>> hex(murmur(b"test", 0))
    '0xba6bd213'
    """
    state = seed
    for (word,) in struct.iter_unpack("<I", data):
        state ^= _rotated(word * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
        state = (_rotated(state, 13) * 5 + 0xE6546B64) & _MASK
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> (32 - by)) & _MASK


def _stepped(states: States) -> States:
    states = states ^ states << np.uint64(21)
    states = states ^ states >> np.uint64(35)
    return states ^ states << np.uint64(4)


def _stream(start: int, count: int) -> States:
    """Give the `count` states that follow a state."""
    doublings = max(count.bit_length() // 2, 0)  # as many lanes as steps, about
    length = -(-count // (1 << doublings))
    lanes = np.array([start], np.uint64)
    ahead = _power(length)
    for _ in range(doublings):
        lanes = np.concatenate([lanes, _applied(ahead, lanes)])
        ahead = _applied(ahead, ahead)
    found = np.empty((length, len(lanes)), np.uint64)
    for step in range(length):
        found[step] = lanes = _stepped(lanes)
    return found.T.reshape(-1)[:count]


def _power(steps: int) -> States:
    """Give the matrix of so many steps, as what becomes of each of the 64 bits."""
    unit = np.uint64(1) << np.arange(64, dtype=np.uint64)
    result, square = unit, _stepped(unit)
    while steps:
        if steps & 1:
            result = _applied(square, result)
        square = _applied(square, square)
        steps >>= 1
    return result


def _applied(matrix: States, states: States) -> States:
    found = np.zeros_like(states)
    for bit in range(64):
        found ^= (states >> np.uint64(bit) & np.uint64(1)) * matrix[bit]
    return found
