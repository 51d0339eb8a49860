"""Repository: which models there are on disk, and which of them are served."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from farandole.errors import InputError, suggestion
from farandole.serving.batching import Batcher, Batching
from farandole.serving.metrics import ModelMetrics
from farandole.serving.model import Model
from farandole.serving.pace import pace_of
from farandole.serving.refusal import Refusal, overloaded
from farandole.serving.warm_up import warm_up

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
Versions = dict[str, Batcher]
"""The highest one first."""
Load = Callable[[str, str, Path], Model]


class Repository:
    """Models by name and version.

    Args:
        paths: folders of saved networks, of versions of one, or of models; `NAME=PATH` gives a
            name of one's own. Later ones can't hide earlier ones.
        load: makes a model of name, version and path.
        batching: how requests are put together.
    """

    def __init__(self, paths: Sequence[str], load: Load, batching: Batching) -> None:
        self._load = load
        self._batching = batching
        self._named: dict[str, Path] = {}
        self._folders: list[Path] = []
        self._served: dict[str, Versions] = {}
        self._is_loaded = False
        self.image_models: frozenset[str] = frozenset()
        """Those that are served and take encoded images: small bodies may be much work."""
        self._metrics: dict[tuple[str, str], ModelMetrics] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(4, "farandole-model")
        for path in paths:
            self._add(path)

    def _add(self, given: str) -> None:
        name, equals, path = given.partition("=")
        found = Path(path if equals else given)
        if not found.exists():
            raise InputError(f"There is no file or folder {str(found)!r} to take a model from.")
        if not equals and found.is_dir() and not versions_in(found):
            self._folders.append(found.resolve())
            return
        name = name if equals else found.resolve().name.partition(".")[0]
        if NAME.fullmatch(name) is None:
            raise InputError(
                f"A model can't be called {name!r}: letters, digits, '_', '-' and '.', and no more "
                "than 128 of them. Give it another name: NAME=PATH."
            )
        if name in self._named:
            raise InputError(f"There are two models {name!r}. Give one another name: NAME=PATH.")
        self._named[name] = found

    def available(self) -> dict[str, Path]:
        """All models on disk; what leads out of a folder of models isn't one of them."""
        found = dict(self._named)
        for folder in self._folders:
            for path in sorted(folder.iterdir()):
                inside = path.resolve().parent == folder and path.is_dir()
                if inside and NAME.fullmatch(path.name) and versions_in(path):
                    found.setdefault(path.name, path)
        return found

    def load_all(self, unloaded: Sequence[str] = ()) -> None:
        """Load and warm up all models that are there, but for those that were unloaded."""
        names = list(self.available())
        if not names:
            where = ", ".join(repr(str(folder)) for folder in self._folders)
            raise InputError(
                f"There is no saved network in {where}: no network.json there, or one folder down."
            )
        for name in names:
            if name not in unloaded:
                self.load(name)
        self._is_loaded = True

    def load(self, name: str) -> None:
        """Load a model, or load it again: requests go to the old one until the new one is warm."""
        path = self.available().get(name)
        if path is None:
            raise self._unknown(name, list(self.available()))
        found = versions_in(path) or {"1": path}
        highest_first = sorted(found, key=int, reverse=True)
        versions = {
            version: self._ready(name, version, found[version]) for version in highest_first
        }
        with self._lock:
            self._serve({**self._served, name: versions})

    def _serve(self, served: dict[str, Versions]) -> None:
        self._served = served
        self.image_models = frozenset(
            name
            for name, versions in served.items()
            if any(one.model.takes_images for one in versions.values())
        )

    def _ready(self, name: str, version: str, path: Path) -> Batcher:
        model = self._load(name, version, path)
        metrics = self._metrics.setdefault((name, version), ModelMetrics(name, version))
        batcher = Batcher(model, self._batching, metrics, self._threads)
        most = self._batching.max_batch
        batcher.pace = pace_of(warm_up(model, most), most)
        return batcher

    def unload(self, name: str) -> None:
        """Serve a model no longer; requests that it has are still answered."""
        with self._lock:
            if name not in self._served:
                raise self._unknown(name, list(self._served))
            self._serve({key: one for key, one in self._served.items() if key != name})

    def find(self, name: str, version: str | None = None) -> Batcher:
        """What answers for a model; without a version, the highest."""
        versions = self._served.get(name)
        if versions is None:
            self.check_loaded()
            raise self._unknown(name, list(self._served))
        found = versions.get(version) if version else next(iter(versions.values()))
        if found is None:
            there = ", ".join(sorted(versions, key=int))
            raise Refusal(404, f"Model {name!r} has no version {version!r}. It has {there}.")
        return found

    def check_loaded(self) -> None:
        """Raise before all models were loaded once."""
        if not self._is_loaded:
            raise overloaded("The models aren't loaded yet.")

    @property
    def served(self) -> dict[str, Versions]:
        """All that requests can reach."""
        return self._served

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What was counted of all models that were ever served."""
        return [one.to_json() for one in list(self._metrics.values())]

    def close(self) -> None:
        """End the threads; what they work on is finished."""
        self._threads.shutdown()

    @staticmethod
    def _unknown(name: str, names: Sequence[str]) -> Refusal:
        advice = suggestion(name, names) if names else "None is loaded."
        return Refusal(404, f"There is no model {name[:128]!r}. {advice}")


def versions_in(path: Path) -> dict[str, Path]:
    """The versions of a model: folders with numbers, or the one that the folder itself is."""
    if is_network(path):
        return {"1": path}
    if not path.is_dir():
        return {}
    numbered = [one for one in path.iterdir() if re.fullmatch(r"[1-9]\d{0,8}", one.name)]
    return {one.name: one for one in numbered if is_network(one) and not one.is_symlink()}


def is_network(path: Path) -> bool:
    """Whether this is the folder of a saved network, or of a model that holds one."""
    inner = path / "network"
    links = inner.is_symlink()  # it may lead out of a folder of models
    return (path / "network.json").is_file() or ((inner / "network.json").is_file() and not links)
