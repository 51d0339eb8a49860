"""TensorBoard's event files: scalars by step, written without TensorFlow or TensorBoard."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78
"""Of CRC-32C, with its bits reversed."""


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _table()


def masked_crc(data: bytes) -> int:
    """The checksum of a record: CRC-32C, rotated and shifted.

    >>> hex(masked_crc(b"123456789"))
    '0xc78ab0e5'
    """
    found = 0xFFFFFFFF
    for byte in data:
        found = found >> 8 ^ _TABLE[(found ^ byte) & 0xFF]
    found ^= 0xFFFFFFFF
    return ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF


class EventFile:
    """A file that TensorBoard shows as curves."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = Path(folder, name).open("ab")  # noqa: SIM115 - until close()
        self._write(_text(3, b"brain.Event:2"))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write values of one step, by their tags."""
        parts = [
            _text(1, _text(1, tag.encode()) + _field(2, 5) + struct.pack("<f", value))
            for tag, value in values.items()
        ]
        self._write(_field(2, 0) + _varint(step) + _text(5, b"".join(parts)))
        self._file.flush()

    def close(self) -> None:
        """No more values."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        data = _field(1, 1) + struct.pack("<d", time.time()) + event
        length = struct.pack("<Q", len(data))
        sums = [struct.pack("<I", masked_crc(part)) for part in (length, data)]
        self._file.write(length + sums[0] + data + sums[1])


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def _field(number: int, kind: int) -> bytes:
    """How protobuf begins a field."""
    return _varint(number << 3 | kind)


def _text(number: int, data: bytes) -> bytes:
    return _field(number, 2) + _varint(len(data)) + data
