"""Functions for Spark's Python workers that say so, in one sentence, where a package is missing.

Spark unpickles a function before it calls it, and what is imported on the way fails deep in pickle.
So the function travels as bytes, inside of one that needs nothing but Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def worker_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, for Spark to send: on a worker it is unpickled when it is first called.

    >>> worker_function(lambda x: x + 1)(2)
    3
    """
    from pyspark import cloudpickle

    pickled = cloudpickle.dumps(function)
    unpickled: list[Callable[..., Any]] = []

    def call(*arguments: Any) -> Any:  # it is pickled by value: nothing of ours may be named here
        if not unpickled:
            import pickle

            try:
                unpickled.append(pickle.loads(pickled))
            except ImportError as error:
                import socket
                import sys

                package = (error.name or str(error)).partition(".")[0]
                send = ", or send it with farandole.spark.ship" * (package == "farandole")
                raise ImportError(
                    f"{sys.executable} on {socket.gethostname()}, the Python of Spark's workers, "
                    f"has no {package}. Install it on every executor{send}, or let "
                    "spark.pyspark.python (PYSPARK_PYTHON) name an environment that has it, before "
                    "the session starts.",
                    name=package,
                ) from None
        return unpickled[0](*arguments)

    # Spark looks at parameters and hints to tell which form of a function it has. A parameter's own
    # hint is a word here: only those in `__annotations__` count, and a type would be imported.
    given = inspect.signature(function).parameters.values()
    plain = [
        one if one.annotation is one.empty else one.replace(annotation="hinted") for one in given
    ]
    call.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]
    call.__annotations__ = get_type_hints(function)
    call.__name__ = getattr(function, "__name__", "call")
    return call
