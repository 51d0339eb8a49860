"""The page of benchmarks/serve.py: its figures in words and tables."""

from __future__ import annotations

from typing import Any

from .reporting import markdown, spread

FLOOR, OURS = "floor", "ours"
Runs = dict[str, list[dict[str, Any]]]
"""By server: what each round has found."""

_WORDS = """# One row, now

Requests of one row, in ms; the highest rate (requests a second) at which 99 of 100 answers come
within 10 ms; and the processor time of a request at that rate, in µs, all processes of a server
together: median (range) of the rounds. The load comes from a process of its own on the same cores;
requests leave by the clock (Poisson), over 64 connections, and count from when they were due. Each
server is one process with one thread for its network, but for what it starts itself. All are
measured in turn, those that aren't are stopped meanwhile; only Ray Serve runs by itself. The floor
is uvicorn with our HTTP protocol, answering a constant: by ASGI, and by the way past it that small
requests to models take. Rates are tried in steps of a tenth.{failed}"""


def page(found: dict[str, Runs]) -> str:
    rows = [
        [
            name,
            who,
            spread([one["low"]["p50"] for one in runs]),
            spread([one["low"]["p99"] for one in runs]),
            spread([rate(one) for one in runs], 0),
            spread([(one["best"] or one["low"])["cpu_us"] for one in runs], 0),
        ]
        for name, ways in found.items()
        for who, runs in ways.items()
    ]
    low = next(iter(found.values()))[FLOOR][0]["low"]["rate"]
    header = ["network", "server", f"p50 at {low:g}/s", f"p99 at {low:g}/s"]
    header += ["rate with p99 < 10 ms", "µs of processor"]
    none = any(not rate(one) for ways in found.values() for runs in ways.values() for one in runs)
    words = _WORDS.format(failed=" 0: not even at low load." if none else "")
    goals = [row for name, ways in found.items() for row in _goals(name, ways)]
    return (
        f"{words}\n\n{markdown(header, rows)}\n\n{markdown(['', 'median (range)', 'goal'], goals)}"
    )


def rate(one: dict[str, Any]) -> float:
    return float(one["best"]["rate"]) if one["best"] else 0.0


def _goals(name: str, ways: Runs) -> list[list[str]]:
    ours, rows = ways[f"{OURS}, binary"], []
    for floor in (FLOOR, f"{FLOOR}, past ASGI"):
        pairs = list(zip(ours, ways[floor], strict=True))
        shares = [rate(a) / rate(b) if rate(b) else 0.0 for a, b in pairs]
        added = [a["low"]["p50"] - b["low"]["p50"] for a, b in pairs]
        rows.append([f"share of the rate of the {floor}, {name}", spread(shares), "≥ 0.7"])
        rows.append([f"ms added to the {floor} at low load (p50), {name}", spread(added), "< 1"])
    for who, runs in ways.items():
        if not who.startswith((FLOOR, OURS)):
            low = runs[0]["low"]["rate"]
            times = [
                rate(a) / max(rate(b), low)
                for a, b in zip(ways[f"{OURS}, JSON"], runs, strict=False)
            ]
            rows.append([f"ours (JSON) / {who}, {name}", spread(times, 1), "> 1"])
    return rows
