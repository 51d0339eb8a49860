"""What Ray says of an actor that is gone, as one sentence."""

from __future__ import annotations

import re

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_NODE = re.compile(r"node (has died|was terminated|is dead)|Node Id:|NodeDied|node died", re.I)
_MEMORY = re.compile(r"low on memory|out of memory|OutOfMemory|memory usage threshold", re.I)
_DETAIL = re.compile(r"Worker exit detail: (.+)", re.S)
_MISSING = re.compile(r"No module named '([\w.]+)'")


def describe_loss(error: BaseException, seen: str = "") -> str:
    """How a worker was lost, from the error that `ray.get` raised, and what else was `seen` of it.

    >>> describe_loss(RuntimeError("The actor died because its node has died. Node Id: 77aa"))
    'its node died (Node Id: 77aa)'
    """
    text = _COLORS.sub("", str(error)).strip()
    if _NODE.search(text):
        found = re.search(r"Node Id: ?(\w+)", text)
        return f"its node died{f' (Node Id: {found[1]})' if found else ''}"
    if _MEMORY.search(text):
        return "Ray killed its process, since its node was running low on memory"
    if "ray.kill" in text:
        return "its actor was ended by ray.kill()"
    if seen:
        return seen
    detail = _DETAIL.search(text)
    said = " ".join((detail[1] if detail else text).split())
    return f"its process died. Ray says: {said.partition('. ')[0][:300].rstrip('.')}"


def describe_start(error: BaseException) -> str:
    """Why a worker could not start.

    >>> describe_start(RuntimeError("ModuleNotFoundError: No module named 'farandole'"))
    "farandole isn't installed on a node of the cluster: install it there, or let Ray do so
    (ray.init(runtime_env={'pip': [...]}))"
    """
    text = _COLORS.sub("", str(error)).strip()
    missing = _MISSING.search(text)
    if missing:
        return (
            f"{missing[1]} isn't installed on a node of the cluster: install it there, or let Ray "
            "do so (ray.init(runtime_env={'pip': [...]}))"
        )
    return (text.splitlines() or [type(error).__name__])[-1]
