"""One row, now: the highest rate that is held with 99 of 100 answers in 10 ms.

    .venv/bin/python benchmarks/serve.py [--quick] [--seconds 1.5 --rounds 3] [--without ray]

Ours with JSON and with binary tensors, against the bare floor (the same HTTP stack answering a
constant; once by ASGI, once by the way that our requests take), LitServe, MLServer and Ray Serve
(each in an environment of its own, if pip can). The load comes from another process, by the clock:
a request's time counts from when it was due. All servers are single processes, but for what they
start themselves. All run in turn, several times; those that aren't measured are stopped meanwhile.
A quarter of an hour: no more rounds than fit into it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support import packages, reporting
from support.serve_page import FLOOR, OURS, Runs, page
from support.server_process import ServerProcess, held
from torch import nn

import farandole

SUPPORT = Path(__file__).parent / "support"
PEERS = {
    "litserve": ("litserve==0.2.19", "peer"),
    "mlserver": ("mlserver==1.7.1", "JSON"),
    "ray": ("ray[serve]==2.60.0", "peer"),
}
"""What pip installs, and which request they get: MLServer speaks the protocol, the others don't."""
OWN_PINS = ("mlserver",)  # needs older packages than ours
NETWORKS = {"[784, 100, 10]": (784,), "CNN": (1, 28, 28)}
MOST_MS = 10.0
LOW = 50.0  # requests a second, for the time that is added at low load
COARSE = [100.0 * 2**step for step in range(11)]
FINE = [2 ** (step / 8) for step in range(1, 8)]
AROUND = [0.5, *(2 ** (step / 8) for step in range(-4, 4))]
MINUTES = 12.0


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "CNN":
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 49, 10),
        )  # fmt: skip
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def requests(name: str) -> dict[str, bytes]:
    """The bytes of a request: the protocol's JSON and binary ones, and what the peers take."""
    shape = NETWORKS[name]
    row = np.random.default_rng(0).random((1, *shape)).astype(np.float32)
    about = {"name": "x", "shape": list(row.shape), "datatype": "FP32"}
    wanted = [{"name": "probability", "parameters": {"binary_data": True}}]
    header = json.dumps(
        {"inputs": [{**about, "parameters": {"binary_data_size": row.nbytes}}], "outputs": wanted}
    ).encode()
    flat = [round(float(value), 4) for value in row.ravel()]
    plain = {"inputs": [{**about, "data": flat}], "outputs": [{"name": "probability"}]}
    rounded = np.array(flat, np.float32).reshape(shape).tolist()
    infer = "/v2/models/model/infer"
    length = f"Inference-Header-Content-Length: {len(header)}\r\n"
    return {
        "binary": post(infer, header + row.tobytes(), length),
        "JSON": post(infer, json.dumps(plain).encode()),
        "peer": post("/predict", json.dumps({"row": rounded}).encode()),
    }


def post(path: str, body: bytes, more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def peer_python(name: str) -> Path | None:
    """The interpreter of an environment with this peer; None where pip can't make one."""
    folder = packages.CACHE / f"peer-{name}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        site = next(folder.glob("lib/python*/site-packages"))
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (site / "ours.pth").write_text("\n".join([*ours, str(reporting.ROOT / "src")]))
        constraints = reporting.ROOT / "constraints.txt"
        pins = [] if name in OWN_PINS else ["-c", constraints]
        command = [python, "-m", "pip", "install", "-q", *pins, PEERS[name][0]]
        done = subprocess.run(command, capture_output=True, timeout=600, check=False)
        if done.returncode != 0:
            return None
        (folder / "complete").touch()
    return python


def contenders(without: list[str]) -> dict[str, tuple[str, list[str]]]:
    """Name → which request it gets, and how it starts (PORT and MODEL are put in)."""
    script = str(SUPPORT / "serve_peers.py")
    ours = [sys.executable, "-m", "farandole", "serve", "model=MODEL", "--port", "PORT"]
    found = {
        FLOOR: ("binary", [sys.executable, script, "floor", "PORT", "MODEL"]),
        f"{FLOOR}, past ASGI": ("binary", [sys.executable, script, "direct", "PORT", "MODEL"]),
        f"{OURS}, binary": ("binary", ours),
        f"{OURS}, JSON": ("JSON", ours),
    }
    for name in PEERS:
        if name not in without and (python := peer_python(name)) is not None:
            package, kind = PEERS[name]
            found[package] = (kind, [str(python), script, name, "PORT", "MODEL"])
    return found


def one_round(server: ServerProcess, before: list[dict[str, Any]], seconds: float) -> Any:
    """The times at low load, and the highest rate that is held, to about a tenth."""
    server.load([200.0], 0.5, MOST_MS)
    (low,) = server.load([LOW], 2 * seconds, MOST_MS)
    known = [one["best"]["rate"] for one in before if one["best"]]
    if known:
        tried = server.load([max(known) * step for step in AROUND], seconds, MOST_MS)
    else:
        tried = server.load(COARSE, seconds, MOST_MS)
        top = max([one["rate"] for one in tried if held(one, MOST_MS)], default=LOW)
        tried += server.load([top * step for step in FINE], seconds, MOST_MS)
    good = [one for one in (low, *tried) if held(one, MOST_MS)]
    return {"low": low, "best": max(good, key=lambda one: one["rate"], default=None)}


def measure(seconds: float, rounds: int, without: list[str]) -> dict[str, Runs]:
    """For both networks: all servers in turn, and that several times."""
    found: dict[str, Runs] = {}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        for number, (name, shape) in enumerate(NETWORKS.items(), 1):
            folder = Path(place) / f"net-{number}"
            farandole.save(network(name), folder, {"x": np.zeros((1, *shape), np.float32)})
            for kind, content in requests(name).items():
                folder.with_suffix(f".{kind}").write_bytes(content)
            until = begin + 60 * MINUTES * number / len(NETWORKS)
            found[name] = {}
            for group in groups(contenders(without)):
                found[name] |= in_turn(name, group, folder, seconds, rounds, until)
    return found


def groups(servers: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that can be stopped and go on later; and Ray, whose parts then take each other for
    dead, by itself."""
    ray = {who: one for who, one in servers.items() if who.startswith("ray")}
    return [{who: one for who, one in servers.items() if who not in ray}, *([ray] if ray else [])]


def in_turn(
    name: str, group: dict[str, Any], folder: Path, seconds: float, rounds: int, until: float
) -> Runs:
    """What each round has found of each of these servers; those that don't start are left out."""
    running: dict[str, ServerProcess] = {}
    runs: Runs = {}
    try:
        for who, (kind, command) in group.items():
            server = ServerProcess(command, folder, folder.with_suffix(f".{kind}"))
            running[who] = server
            try:
                server.wait()
            except RuntimeError as error:
                print(f"{name}: {who}: {error}", file=sys.stderr, flush=True)
                running.pop(who).stop()
                continue
            if len(group) > 1:
                server.pause()
        for number in range(rounds):
            if number and time.monotonic() > until:
                break
            for who, server in running.items():
                server.go()
                runs.setdefault(who, []).append(one_round(server, runs.get(who, []), seconds))
                if len(group) > 1:
                    server.pause()
                print(f"{name}: {who} {runs[who][-1]}", file=sys.stderr, flush=True)
    finally:
        for server in running.values():
            server.stop()
    return runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="of each rate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="once, a second, without peers")
    parser.add_argument("--without", default="", metavar="A,B", help="leave peers out")
    given = parser.parse_args()
    if given.quick:
        print(page(measure(1.0, 1, list(PEERS))))
    else:
        figures = measure(given.seconds, given.rounds, given.without.split(","))
        reporting.write("serve", {"ms and rates": figures}, page(figures))
