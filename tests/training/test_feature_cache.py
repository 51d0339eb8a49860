"""Frozen layers see each row once, where that makes no difference: the same results as without."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.training import oracle
from tests.training.networks import Backbone
from tests.training.partial_oracle import by_hand, group
from tests.training.trial import FEATURES, ROWS, TABLE, assert_same, train
from torch import nn
from torch.nn import functional as F

from farandole import TrainingResult, networks
from farandole.data.mapped_array import MappedArray
from farandole.engines import inline
from farandole.parallel.sync_batch_norm import convert_sync_batch_norm
from farandole.training import FeaturesCached
from farandole.training import feature_cache as caching
from farandole.training.freezing import Frozen
from farandole.training.split_point import NoSplit, SplitPoint, check_split, split_points
from farandole.world import World


class Counting(nn.Linear):
    """Counts the rows it sees, in eval mode or not."""

    seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Counting.seen += len(x)
        return super().forward(x)


TRIED = 40
"""At most so many rows more are used up by trying the network before it trains."""


def counted(network: nn.Module, **options: Any) -> tuple[int, TrainingResult]:
    Counting.seen = 0
    result = train(network, **options)
    return Counting.seen, result


def deep(*tail: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(Counting(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), *tail)


def test_rows_go_through_the_body_once_not_once_an_epoch() -> None:
    """All rows, those to validate on too; a few more to find out whether it may be done."""
    network = deep(nn.Linear(8, 3))
    # Without a try whether it can be saved, which sends some rows through, and only the first time.
    options: dict[str, Any] = {"freeze": "all but head", "validation": 0.3, "allow_pickle": True}
    once, _ = counted(network, epochs=1, **options)
    often, cached = counted(network, epochs=6, **options)
    assert ROWS <= once == often <= ROWS + TRIED
    usual, uncached = counted(network, epochs=6, cache_features=False, **options)
    assert usual >= 6 * ROWS
    assert_alike(cached, uncached)
    assert "features" in cached.seconds
    assert "features" not in uncached.seconds


def assert_alike(one: TrainingResult, other: TrainingResult) -> None:
    timings = ["seconds", "rows_per_second"]
    pd.testing.assert_frame_equal(
        one.history.drop(columns=timings), other.history.drop(columns=timings), rtol=1e-4
    )
    np.testing.assert_allclose(one.steps["loss"], other.steps["loss"], rtol=1e-4)
    assert one.signature == other.signature
    assert repr(one.network) == repr(other.network)
    for (name, a), b in zip(
        one.network.state_dict().items(), other.network.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {"validation": 0.2, "patience": 1, "epochs": 8},
        {"class_weights": [1, 2, 3], "weight": "weight", "accumulation": 2},
        {"shuffle": False, "schedule": "cosine", "warmup": 2, "clip_norm": 0.1},
        {"optimizer": "lbfgs", "learning_rate": 1e-3, "validation": 0.2},
        {"learning_rates": {"4.bias": 0.01}},
    ],
    ids=["validation", "weights", "order", "solver", "rates"],
)
def test_the_same_as_without(options: dict[str, Any]) -> None:
    network = deep(nn.Linear(8, 3))
    options = {"freeze": "all but head", **options}
    seen, cached = counted(network, **options)
    assert seen <= ROWS + TRIED
    assert_alike(cached, train(network, cache_features=False, **options))


@pytest.mark.filterwarnings("ignore:TF32")
def test_half_precision() -> None:
    """Without oneDNN, whose bfloat16 kernels kill the process on some machines."""
    network = deep(nn.Linear(8, 3))
    options: dict[str, Any] = {"freeze": "all but head", "precision": "bfloat16"}
    with torch.backends.mkldnn.flags(enabled=False):
        seen, cached = counted(network, **options)
        uncached = train(network, cache_features=False, **options)
    assert seen <= ROWS + TRIED
    np.testing.assert_allclose(cached.steps["loss"], uncached.steps["loss"], rtol=0.02)


class Cut(nn.Module):
    """A body and a head, and what may come between and behind them."""

    def __init__(self, between: Any = None, behind: Any = None, own: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            self.body = nn.Sequential(Counting(4, 8), nn.Tanh())
            self.head = nn.Linear(8, 3)
        self.between, self.behind = between, behind
        self.register_buffer("calls", torch.zeros(()))
        self.own = own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.body(x)
        if self.own and self.training:
            self.calls += 1
        if self.between is not None:
            found = self.between(found, self.training)
        found = self.head(found)
        return found if self.behind is None else self.behind(found)


def drop_little(x: torch.Tensor, training: bool) -> torch.Tensor:
    return F.dropout(x, 1e-4, training)


def centre(x: torch.Tensor, training: bool) -> torch.Tensor:
    return x - x.mean(0)


def double_in_training(x: torch.Tensor, training: bool) -> torch.Tensor:
    return x * 2 if training else x


def far_above(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-1e6, 1e6)


def far_above_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.clamp_(-1e6, 1e6)


@pytest.mark.parametrize(
    "network",
    [
        Cut(drop_little),
        Cut(centre),
        Cut(double_in_training),
        Cut(behind=far_above),
        Cut(behind=far_above_in_place),
        Cut(own=True),
    ],
    ids=["random", "batch", "mode", "behind", "behind, in place", "buffer"],
)
def test_where_it_would_make_a_difference_it_is_not_done(network: Cut) -> None:
    seen, result = counted(network, freeze="all but head", epochs=3)
    assert seen >= 3 * ROWS
    uncached = train(network, freeze="all but head", epochs=3, cache_features=False)
    assert_alike(result, uncached)
    assert torch.equal(result.network.calls, uncached.network.calls)  # type: ignore[arg-type]


class Tied(Cut):
    """What learns at the end is also at the beginning."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.body(x + self.head.bias.sum()))
        return found


def test_what_learns_may_not_come_twice() -> None:
    seen, result = counted(Tied(), freeze="all but head", epochs=3)
    assert seen >= 3 * ROWS
    assert_alike(result, train(Tied(), freeze="all but head", epochs=3, cache_features=False))


class Greedy(nn.Linear):
    """Writes to what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mul_(2))


def test_what_is_kept_may_not_be_written_to() -> None:
    network = deep(Greedy(8, 3))
    options: dict[str, Any] = {"optimizer": "lbfgs", "learning_rate": 1e-3, "epochs": 4}
    result = train(network, freeze="all but head", **options)
    assert_alike(result, train(network, freeze="all but head", cache_features=False, **options))


def test_a_plain_cut_is_done() -> None:
    assert counted(Cut(), freeze="all but head", epochs=3)[0] <= ROWS + TRIED


@pytest.mark.parametrize(
    ("network", "freeze"),
    [
        (deep(nn.Dropout(0.5), nn.Linear(8, 3)), ["0", "2"]),
        (deep(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3)), ["0", "2"]),
        (deep(nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 3))), ["0", "2"]),
    ],
    ids=["dropout in front", "several layers", "a head with dropout"],
)
def test_dropout_and_norms_in_the_tail(network: nn.Module, freeze: list[str]) -> None:
    """The tail may be random: it draws the same numbers as without a cache."""
    seen, result = counted(network, freeze=freeze, epochs=3, optimizer="sgd")
    assert seen <= ROWS + 40
    uncached = train(network, freeze=freeze, epochs=3, cache_features=False, optimizer="sgd")
    assert_alike(result, uncached)


def test_against_a_loop_by_hand() -> None:
    network = Backbone()
    events: list[Any] = []
    result = train(network, freeze="all but head", observer=events.append)
    assert_same(result, by_hand(network, lambda n: [group(n.classifier)], at_rest=["body", "norm"]))
    told = [event for event in events if isinstance(event, FeaturesCached)]
    assert (told[0].rows, told[-1].rows, told[-1].of) == (0, ROWS, ROWS)


def test_images_of_any_size() -> None:
    random = np.random.default_rng(0)
    sizes = random.integers(5, 12, (60, 2))
    images = [random.random(tuple(size)).astype(np.float32).tolist() for size in sizes]
    table = pd.DataFrame({"features": images, "label": random.integers(0, 3, 60)})
    network = networks.CNN(channels=1, outputs=3, filters=(4,), batch_norm=True, seed=1)
    calls: list[int] = []
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, *_: calls.append(1) if isinstance(module, nn.Conv2d) else None
    )
    try:
        cached = train(network, table, freeze="all but head", epochs=5, batch_size=10)
    finally:
        hook.remove()
    assert len(calls) < 12, "not once a batch"
    options: dict[str, Any] = {"epochs": 5, "batch_size": 10, "cache_features": False}
    assert_alike(cached, train(network, table, freeze="all but head", **options))


def test_a_full_disk_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    network = deep(nn.Linear(8, 3))
    append = MappedArray.append

    def full(self: MappedArray, array: Any) -> None:
        if array.shape[1:] == (8,):
            raise OSError("No space left on device")
        append(self, array)

    monkeypatch.setattr(MappedArray, "append", full)
    seen, result = counted(network, freeze="all but head", epochs=3)
    assert seen >= 3 * ROWS
    monkeypatch.undo()
    assert_alike(result, train(network, freeze="all but head", epochs=3))


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_disk_that_would_be_full_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """Half precision is kept as float32."""
    free = SimpleNamespace(free=2 * ROWS * 8 * 4 - 1)
    monkeypatch.setattr("farandole.training.feature_cache.shutil.disk_usage", lambda folder: free)
    options: dict[str, Any] = {"freeze": "all but head", "epochs": 3, "precision": precision}
    with torch.backends.mkldnn.flags(enabled=False):
        assert counted(deep(nn.Linear(8, 3)), **options)[0] >= 3 * ROWS
        free.free += 1
        assert counted(deep(nn.Linear(8, 3)), **options)[0] <= ROWS + TRIED


def test_features_much_larger_than_rows_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "_MOST_BYTES", 0)
    wide = nn.Sequential(Counting(4, 40), nn.Linear(40, 3))
    assert counted(wide, freeze="all but head", epochs=3)[0] >= 3 * ROWS
    wide = nn.Sequential(Counting(4, 32), nn.Linear(32, 3))
    assert counted(wide, freeze="all but head", epochs=3)[0] <= ROWS + TRIED


def test_workers_meet_while_they_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at its end only: one may be much slower, and one that gives up stops the others."""
    states: list[Any] = []

    def gather(value: Any, world: World) -> list[Any]:
        if isinstance(value, caching._State):
            states.append(value)
            if len(states) == 2 and alone is False:
                return [value, caching._State.GAVE_UP]
        return [value]

    monkeypatch.setattr(caching, "gather_objects", gather)
    monkeypatch.setattr(caching, "_EXCHANGE_SECONDS", 0)
    monkeypatch.setattr("farandole.networks.batch_sizing._BYTES", 2 * 32 * 4 * 6)  # six rows
    options: dict[str, Any] = {"freeze": "all but head", "epochs": 1}
    for alone in (True, False):
        states.clear()
        result = train(deep(nn.Linear(8, 3)), **options)
        assert len(states) == (1 + -(-(ROWS - 16) // 6) + 1 if alone else 2)
        assert (states[-1] is caching._State.DONE) == alone
        assert ("features" in result.seconds) == alone


def test_a_norm_over_all_workers_is_not_tried_out() -> None:
    """It would wait for a worker that has no rows to try it with."""
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3))
    assert len(split_points(network, Frozen.of(network, ["0"]))) == 2
    joint = convert_sync_batch_norm(network, World(size=2))
    (only,) = split_points(joint, Frozen.of(joint, ["0"]))
    assert joint[1] in only.tail.modules()
    assert len(split_points(joint, Frozen.of(joint, ["0", "1"]))) == 2


class Writing(nn.Module):
    """Draws a number and counts, in any mode, then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += torch.rand(()) + 1
        if self.calls > 100:
            raise ValueError
        found: torch.Tensor = self.head(self.body(x))
        return found


@pytest.mark.parametrize("start", [0.0, 100.0])
def test_what_is_tried_leaves_no_traces(start: float) -> None:
    network = Writing()
    network.calls.fill_(start)  # type: ignore[operator, union-attr]
    point = SplitPoint(network.head, network.head, network.head)
    before = torch.get_rng_state()
    with pytest.raises((NoSplit, ValueError)):
        check_split(point, network, Frozen.of(network, ["body"]), [FEATURES[:4]], [FEATURES[:2]])
    assert torch.equal(torch.get_rng_state(), before)
    assert network.calls == start


def test_time_for_caching_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = deep(nn.Linear(8, 3))
    slow[1].register_forward_hook(lambda *_: time.sleep(0.05))
    options: dict[str, Any] = {"freeze": "all but head", "epochs": 10_000, "max_seconds": 0.1}
    assert len(train(slow, **options).history) == 1
    monkeypatch.setattr("farandole.networks.batch_sizing._BYTES", 1)  # row by row
    result = train(slow, **options)
    assert len(result.history) == 1
    assert "features" not in result.seconds, "it gave up in the middle"


def test_a_wish_to_stop_is_heard_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline._DirectLink, "stop_requested", lambda self: True)
    Counting.seen = 0
    with pytest.raises(KeyboardInterrupt):
        train(deep(nn.Linear(8, 3)), freeze="all but head", epochs=100)
    assert Counting.seen < ROWS


def test_nothing_behind_the_cut_is_computed() -> None:
    network = deep(nn.Linear(8, 3))
    point = split_points(network, Frozen.of(network, "all but head"))[0]
    assert point.tail is network[4]
    calls: list[nn.Module] = []
    network[4].register_forward_hook(lambda module, *_: calls.append(module))
    with torch.no_grad():
        torch.testing.assert_close(point.features(network, [FEATURES]), network[:4](FEATURES))
    assert calls == []
    assert not network[4]._forward_pre_hooks, "no hook is left behind"


def test_rows_are_not_changed() -> None:
    before = oracle.tensors(TABLE)[0].clone()
    network = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 8), nn.Linear(8, 3))
    result = train(network, freeze="all but head")
    assert_alike(result, train(network, freeze="all but head", cache_features=False))
    assert torch.equal(oracle.tensors(TABLE)[0], before)
