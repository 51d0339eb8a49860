"""A stand-in for sessions of Spark Connect."""

from __future__ import annotations

from types import SimpleNamespace


class Connect:
    """What `_spark` sees of a Connect session: its settings."""

    def __init__(self, **settings: str) -> None:
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.conf = SimpleNamespace(get=self._settings.get)


Connect.__module__ = "pyspark.sql.connect.session"
