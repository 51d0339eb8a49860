"""Calls ports without knowing the secret of the run:

    python stranger_script.py '[["10.77.0.1", 4000]]'

Prints a JSON list: of each call, whether somebody answered it, how much they said, and whether they
ended it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

SECONDS = 15.0


def call(address: str, port: int) -> dict[str, Any]:
    told: dict[str, Any] = {"address": address, "port": port, "bytes": 0}
    try:
        connection = socket.create_connection((address, port), SECONDS)
    except OSError:
        return told | {"answered": False, "closed": True}
    with connection:
        try:
            connection.sendall(os.urandom(4096))
            while data := connection.recv(1 << 16):
                told["bytes"] += len(data)
        except TimeoutError:
            return told | {"answered": True, "closed": False}
        except OSError:
            pass
    return told | {"answered": True, "closed": True}


print(json.dumps([call(address, port) for address, port in json.loads(sys.argv[1])]))
