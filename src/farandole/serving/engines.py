"""Which engine computes a model's answers: of those that agree, the one that is clearly fastest.

eager       the network as it was loaded
exported    torch's program of it: what torch.export gives
onnx        the same program, run by onnxruntime
compiled    torch.compile: half a minute and a C++ compiler, so only for who asks for it
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from farandole.artifact import OnnxNetwork, Program, ScriptNetwork, Signature, to_onnx, to_program
from farandole.errors import InputError
from farandole.inference import Predictor
from farandole.keras_models import KerasNetwork
from farandole.serving.agreement import Expected
from farandole.serving.model import Model
from farandole.serving.pace import Times
from farandole.serving.warm_up import answer_seconds

log = logging.getLogger("farandole.serving.engines")

AUTO, EAGER = "auto", "eager"
ENGINES = (AUTO, EAGER, "exported", "compiled", "onnx")
WORTH = Times(one=1e-3, full=2e-3)
"""A row or a full batch, as it was loaded: below both, requests cost about as much as the network,
and the seconds of exporting at every start would not be paid back."""
LARGEST, MOST_MODULES = 200 << 20, 300
"""Bytes of weights, and modules: above that, exporting takes too long for a start."""
GAIN = 0.15
_ROUNDS = 15
_MOST_SECONDS = 1.0


def fastest(own: str, measured: Mapping[str, Times]) -> str:
    """Which engine to take: `own`, unless another is clearly faster, and slower at nothing.

    >>> times = {"eager": Times(1.0, 4.0), "onnx": Times(0.5, 3.9), "exported": Times(0.1, 4.4)}
    >>> fastest("eager", times)
    'onnx'
    >>> fastest("eager", {"eager": Times(1.0, 4.0), "onnx": Times(0.9, 3.6)})
    'eager'
    """
    base = measured[own]
    best, gain = own, 1.0
    for name, times in measured.items():
        one, full = times.one / base.one, times.full / base.full
        if max(one, full) <= 1 and min(one, full) <= 1 - GAIN and one * full < gain:
            best, gain = name, one * full
    return best


def own_engine(network: nn.Module) -> str:
    """What computes a network as it was loaded."""
    kinds = {Program: "exported", OnnxNetwork: "onnx", ScriptNetwork: "torchscript"}
    return next((name for kind, name in kinds.items() if isinstance(network, kind)), EAGER)


def check_engine(engine: str) -> None:
    """Raise for what is no engine."""
    if engine not in ENGINES:
        raise InputError(f"engine must be one of {', '.join(ENGINES)}. Received: {engine!r}")


def choose_engine(model: Model, wanted: str, max_batch: int) -> Model:
    """The model with the engine that was asked for, or that measuring has chosen.

    Args:
        model: as it was loaded.
        wanted: one of `ENGINES`; "eager" leaves it as it was loaded.
        max_batch: rows of a full batch.
    """
    if wanted in (EAGER, model.engine):
        return model
    if wanted == AUTO:
        return _measured(model, max_batch)
    try:
        return _forced(model, wanted, max_batch)
    except Exception as error:
        raise InputError(
            f"Model {model.name!r}, version {model.version}, can't have the engine {wanted!r}: "
            f"{_in_short(error)} Take auto or eager."
        ) from error


def _forced(model: Model, wanted: str, max_batch: int) -> Model:
    """With this engine; only what NaN becomes may differ."""
    why = _only_engine(model)
    if why:
        raise InputError(why)
    expected = Expected.of(model, max_batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has some about itself
        found = _Engines(model).make(wanted)
        expected.check(found)
    _say(found, measure({wanted: found}, expected, fair_clock()))
    return found


def _measured(model: Model, max_batch: int) -> Model:
    why = _unsuitable(model)
    if why:
        log.info("model %r, version %s: %s, since %s", model.name, model.version, model.engine, why)
        return model
    try:
        expected = Expected.of(model, max_batch, with_nan=True)
        times = measure({model.engine: model}, expected, time.thread_time)
    except Exception:  # what is wrong with it, warming up will say
        return model
    own = times[model.engine]
    # Most of a Keras model's time is Keras's own, which no other engine has.
    is_keras = isinstance(model.predictor.module, KerasNetwork)
    if own.one < WORTH.one and own.full < WORTH.full and not is_keras:
        _say(model, times)
        return model
    found = {model.engine: model, **_agreeing(model, expected)}
    times = measure(found, expected, fair_clock())
    chosen = found[fastest(model.engine, times)]
    _say(chosen, times)
    return chosen


def _agreeing(model: Model, expected: Expected) -> dict[str, Model]:
    """The model with each engine that can be had at once and gives the same answers."""
    engines = _Engines(model)
    found = {}
    for name in ("exported", "onnx"):
        if name == model.engine:
            continue
        try:
            made = engines.make(name)
            expected.check(made)
        except Exception as error:
            log.info(
                "model %r, version %s: not by %s. %s",
                model.name, model.version, name, _in_short(error),
            )  # fmt: skip
            continue
        found[name] = made
    return found


def fair_clock() -> Callable[[], float]:
    """This thread's own clock, as long as it does all of the work; else the one on the wall.

    Waiting for other threads is work to torch, which spins, and none to onnxruntime.
    """
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def measure(
    models: Mapping[str, Model], expected: Expected, clock: Callable[[], float]
) -> dict[str, Times]:
    """The least time of several rounds, in each of which every engine has its turn."""
    one: dict[str, list[float]] = {name: [] for name in models}
    full: dict[str, list[float]] = {name: [] for name in models}
    spent = 0.0
    for _ in range(_ROUNDS):
        for name, model in models.items():
            one[name].append(answer_seconds(model, expected.one_row, clock))
            full[name].append(answer_seconds(model, expected.full_batch, clock))
            spent += one[name][-1] + full[name][-1]
        if spent > _MOST_SECONDS:
            break
    return {name: Times(min(one[name]), min(full[name])) for name in models}


def _only_engine(model: Model) -> str:
    """Why there is no other engine for a model; empty if there may be."""
    if model.is_ragged:
        return "its rows differ in size"
    if model.engine in ("onnx", "torchscript"):
        return f"its file is {model.engine}"
    return ""


def _unsuitable(model: Model) -> str:
    """Why no other engine is tried unless it is asked for."""
    why = _only_engine(model)
    if why:
        return why
    network = model.predictor.module
    size = sum(one.nbytes for one in (*network.parameters(), *network.buffers()))
    if size > LARGEST:
        return f"its weights of {size >> 20} MB take too long to export"
    if sum(1 for _ in network.modules()) > MOST_MODULES:
        return f"more than {MOST_MODULES} modules take too long to export"
    return ""


class _Engines:
    """Makes the engines of one model; what several need is made once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        network = model.predictor.module
        self._program = network if isinstance(network, Program) else None

    def make(self, name: str) -> Model:
        """The model with another engine."""
        makers: dict[str, Callable[[], nn.Module]] = {
            "exported": self._exported,
            "onnx": self._onnx,
            "compiled": self._compiled,
        }
        network = makers[name]()
        rows = self._model.predictor.rows_at_once
        predictor = Predictor(network, self._model.signature, batch_size=rows or "auto")
        return Model(
            self._model.name, self._model.version, predictor, self._model.labels, engine=name
        )

    def _exported(self) -> Program:
        if self._program is None:
            self._program = to_program(self._model.predictor.module, self._model.signature)
        return self._program

    def _onnx(self) -> nn.Module:
        keys = _keys(self._model.predictor.module, self._model.signature)
        return _OnnxEngine(to_onnx(self._exported()), keys)

    def _compiled(self) -> nn.Module:
        return _CompiledEngine(self._model.predictor.module)


class _OnnxEngine(nn.Module):
    """Takes and gives what the network does that it was made of; ONNX knows tensors only."""

    def __init__(self, network: OnnxNetwork, keys: list[str]) -> None:
        super().__init__()
        self.network = network
        self._keys = keys

    def forward(self, *arguments: Any) -> Any:
        flat: list[torch.Tensor | None] = []
        for argument in arguments:
            flat += argument.values() if isinstance(argument, dict) else [argument]
        found = self.network(*[tensor for tensor in flat if tensor is not None])
        return dict(zip(self._keys, found, strict=True)) if self._keys else found


def _keys(network: nn.Module, signature: Signature) -> list[str]:
    """Of a network that gives a dict: its keys."""
    with torch.inference_mode():
        output = network(*signature.example())
    return list(output) if isinstance(output, dict) else []


class _CompiledEngine(nn.Module):
    """Compiled for one row, and for any other number of them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._compiled = torch.compile(network.forward, dynamic=True)

    def forward(self, *arguments: Any) -> Any:
        return self._compiled(*arguments)


def _say(chosen: Model, times: Mapping[str, Times]) -> None:
    said = "; ".join(f"{name} {one}" for name, one in times.items())
    log.info("model %r, version %s: %s (%s)", chosen.name, chosen.version, chosen.engine, said)


def _in_short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[0][:300].rstrip('.')}."
