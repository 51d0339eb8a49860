"""One row, now: the highest rate that is held with 99 of 100 answers in 10 ms.

    .venv/bin/python benchmarks/serve.py [--quick] [--seconds 2 --repeats 3] [--without ray]

Ours with JSON and with binary tensors, against the bare floor (the same HTTP stack answering a
constant), LitServe, MLServer and Ray Serve (each in an environment of its own, if pip can). The
load comes from another process, by the clock: a request's time counts from when it was due. All
servers are single processes, but for what they start themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support import packages, reporting
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
LOW = 50  # requests a second, for the time that is added at low load


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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, request: bytes) -> Iterator[None]:
    """A server, until it isn't needed any more; it answers this request."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        wait_for(port, process, request)
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started itself
        process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes], request: bytes) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(request)
                if connection.recv(64).split(b" ")[1:2] == [b"200"]:
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise RuntimeError("the server didn't start")


def load(port: int, file: Path, rate: float, seconds: float) -> dict[str, float]:
    command = [
        sys.executable,
        SUPPORT / "load_generator.py",
        "127.0.0.1",
        port,
        file,
        rate,
        seconds,
    ]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def held(found: dict[str, float]) -> bool:
    return found["p99"] < MOST_MS and not found["failed"]


def highest(port: int, file: Path, seconds: float) -> dict[str, Any]:
    """The highest rate that is held, to about a fifth; and the times at low load."""
    load(port, file, 200, 0.5)
    low = load(port, file, LOW, seconds)
    best, rate = low if held(low) else None, 400.0
    step = 2.0
    while step > 1.15:
        found = load(port, file, rate, seconds)
        if held(found):
            best = found
            rate *= step
        else:
            base = best["rate"] if best else rate / step
            step = step**0.5
            rate = base * step
        if rate < LOW:
            break
    return {"low": low, "best": best}


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
        "floor": ("binary", [sys.executable, script, "floor", "PORT", "MODEL"]),
        "ours, binary": ("binary", ours),
        "ours, JSON": ("JSON", ours),
    }
    for name in PEERS:
        if name not in without and (python := peer_python(name)) is not None:
            package, kind = PEERS[name]
            found[package] = (kind, [str(python), script, name, "PORT", "MODEL"])
    return found


Runs = dict[str, list[dict[str, Any]]]
"""By server: what each repetition found."""


def measure(seconds: float, repeats: int, without: list[str]) -> dict[str, Runs]:
    """All servers in turn, and that several times."""
    found: dict[str, Runs] = {}
    with tempfile.TemporaryDirectory() as place:
        for name, shape in NETWORKS.items():
            folder = Path(place) / f"net-{len(found)}"
            farandole.save(network(name), folder, {"x": np.zeros((1, *shape), np.float32)})
            files = {kind: folder.with_suffix(f".{kind}") for kind in requests(name)}
            for kind, content in requests(name).items():
                files[kind].write_bytes(content)
            servers = contenders(without)
            found[name] = {who: [] for who in servers}
            for _ in range(repeats):
                for who, (kind, command) in servers.items():
                    found[name][who].append(one_server(command, folder, files[kind], seconds))
                    print(f"{name}: {who} {found[name][who][-1]}", file=sys.stderr, flush=True)
    return found


def one_server(command: list[str], folder: Path, request: Path, seconds: float) -> dict[str, Any]:
    port = free_port()  # MLServer takes the two after it as well
    words = {"PORT": str(port), "model=MODEL": f"model={folder}", "MODEL": str(folder)}
    with running([words.get(word, word) for word in command], port, request.read_bytes()):
        return highest(port, request, seconds)


def goals(found: dict[str, Runs]) -> list[list[str]]:
    rows = []
    for name, ways in found.items():
        floor, ours = ways["floor"], ways["ours, binary"]
        share = [rate(a) / rate(b) if rate(b) else 0.0 for a, b in zip(ours, floor, strict=True)]
        added = [a["low"]["p50"] - b["low"]["p50"] for a, b in zip(ours, floor, strict=True)]
        rows.append([f"share of the floor's rate, {name}", reporting.spread(share), "≥ 0.7"])
        rows.append([f"ms added at low load (p50), {name}", reporting.spread(added), "< 1"])
        for who in ways:
            if who not in ("floor", "ours, binary", "ours, JSON"):
                pairs = zip(ways["ours, JSON"], ways[who], strict=True)
                times = [rate(a) / max(rate(b), LOW) for a, b in pairs]
                rows.append([f"ours (JSON) / {who}, {name}", reporting.spread(times, 1), "> 1"])
    return rows


def rate(one: dict[str, Any]) -> float:
    return float(one["best"]["rate"]) if one["best"] else 0.0


def page(found: dict[str, Runs]) -> str:
    rows = [
        [
            name,
            who,
            reporting.spread([one["low"]["p50"] for one in runs]),
            reporting.spread([one["low"]["p99"] for one in runs]),
            reporting.spread([rate(one) for one in runs], 0),
        ]
        for name, ways in found.items()
        for who, runs in ways.items()
    ]
    header = ["network", "server", f"p50 at {LOW}/s", f"p99 at {LOW}/s", "rate with p99 < 10 ms"]
    return (
        "# One row, now\n\nRequests of one row, in ms, and the highest rate (requests a second) "
        "at which 99 of 100 answers\ncome within 10 ms: median (range). The load comes from a "
        "process of its own on the same two cores;\nrequests leave by the clock (Poisson), over 64 "
        "connections, and count from when they were due.\nEach server is one process with one "
        "thread for its network, but for what it starts itself; all run in\nturn. The floor is "
        "uvicorn with our HTTP protocol, answering a constant. Rates are tried in steps of a\n"
        "fifth; quantiles are the median of five windows, since the machine itself stalls at times."
        f"{' 0: not even at low load.' if any_failed(found) else ''}\n"
        f"\n{reporting.markdown(header, rows)}\n\n"
        f"{reporting.markdown(['', 'median (range)', 'goal'], goals(found))}"
    )


def any_failed(found: dict[str, Runs]) -> bool:
    return any(not rate(one) for ways in found.values() for runs in ways.values() for one in runs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each rate")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="once, a second, without peers")
    parser.add_argument("--without", default="", metavar="A,B", help="leave peers out")
    given = parser.parse_args()
    if given.quick:
        print(page(measure(1.0, 1, list(PEERS))))
    else:
        figures = measure(given.seconds, given.repeats, given.without.split(","))
        reporting.write("serve", {"ms and rates": figures}, page(figures))
