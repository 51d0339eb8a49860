from __future__ import annotations

from itertools import pairwise

import pandas as pd
import pytest
import torch
from torch import nn

import farandole
from farandole.errors import InputError
from farandole.planning import Layer, Plan, Profile, choose
from farandole.planning.strategies import INEXACT
from farandole.training.recipe import Recipe

LAYERS = [Layer(str(n), 2_000_000, 0.004, 0.008, kept=1e7, output=1e5) for n in range(8)]
PROFILE = Profile(LAYERS, optimizer=0.001, rows=64, name="eight layers")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return farandole.plan(PROFILE, workers="1..256", link="25Gbit", price=2.0, rows=64_000_000)


def of(plan: Plan, strategy: str, column: str) -> pd.Series[float]:
    rows = plan.table[plan.table["strategy"] == strategy]
    return rows.set_index("workers")[column]


def test_one_worker_alone_scales_perfectly_and_sends_nothing(plan: Plan) -> None:
    alone = plan.table[plan.table["workers"] == 1]
    assert alone["efficiency"].tolist() == pytest.approx([1.0] * len(alone))
    assert not alone["sent"].any()


@pytest.mark.parametrize("strategy", ["allreduce", "ring", "zero-2", "zero-3", "local-sgd"])
def test_more_workers_are_never_more_efficient(plan: Plan, strategy: str) -> None:
    assert of(plan, strategy, "efficiency").is_monotonic_decreasing


def test_a_single_server_is_the_bottleneck(plan: Plan) -> None:
    seconds = of(plan, "parameter-server", "seconds")
    assert seconds[256] / seconds[128] == pytest.approx(2, rel=0.05)
    assert of(plan, "ring", "seconds")[256] < seconds[256] / 20


def test_pipelines_need_a_layer_for_each_worker(plan: Plan) -> None:
    assert of(plan, "gpipe", "seconds").index.max() == len(LAYERS)
    naive, gpipe = of(plan, "naive", "efficiency"), of(plan, "gpipe", "efficiency")
    assert naive[8] == pytest.approx(1 / 8, rel=0.1)
    assert gpipe[8] > 5 * naive[8]


def test_1f1b_keeps_fewer_activations_than_gpipe(plan: Plan) -> None:
    assert of(plan, "1f1b", "memory")[8] < of(plan, "gpipe", "memory")[8]


def test_bytes_are_those_of_the_textbook(plan: Plan) -> None:
    size = 4 * PROFILE.parameters
    assert of(plan, "ring", "sent")[256] == pytest.approx(2 * 255 / 256 * size)
    assert of(plan, "fp16", "sent")[256] == pytest.approx(255 / 256 * size)
    assert of(plan, "zero-3", "sent")[256] == pytest.approx(3 * 255 / 256 * size)
    assert of(plan, "local-sgd", "sent")[256] == pytest.approx(2 * 255 / 256 * size / 8)


def test_money_is_workers_hours_and_price(plan: Plan) -> None:
    steps = 64_000_000 / 64 / 128
    seconds = of(plan, "ring", "seconds")[128]
    assert of(plan, "ring", "money")[128] == pytest.approx(steps * seconds / 3600 * 128 * 2.0)


def test_what_overlaps_is_hidden() -> None:
    overlapped, after = (
        farandole.plan(PROFILE, workers=8, link="100Gbit", overlap=overlap)
        for overlap in (True, False)
    )
    for name in ("allreduce", "zero-2", "zero-3"):
        assert of(overlapped, name, "seconds")[8] < of(after, name, "seconds")[8]
    computing = PROFILE.seconds * 1.05
    assert of(overlapped, "allreduce", "seconds")[8] < computing + 0.02
    assert not after.table["overlaps"].any()


@pytest.mark.parametrize(
    ("per_host", "device", "expected"),
    [(1, "cpu", True), (4, "cpu", False), (4, "gpu", True)],
)
def test_only_what_overlaps_at_run_time_does_so_here(
    per_host: int, device: str, expected: bool
) -> None:
    found = farandole.plan(PROFILE, workers=8, per_host=per_host, device=device).table
    overlapping = set(found[found["overlaps"]]["strategy"])
    assert overlapping == {"zero-2", "zero-3"} | ({"allreduce"} if expected else set())
    summed = found.set_index("strategy")["seconds"]
    assert summed["ring"] > PROFILE.seconds + 2 * 7 / 8 * 4 * PROFILE.parameters / 1.25e9


def test_what_the_runtime_refuses_has_no_row() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            inner: torch.Tensor = self.two(self.one(rows))
            return inner + rows

    found = farandole.plan(Twice(), workers=[2, 64], step_time="1ms")
    rows = {(row.strategy, row.workers) for row in found.table.itertuples()}
    assert ("zero-2", 2) in rows
    assert ("zero-2", 64) not in rows
    assert not {"naive", "gpipe", "1f1b", "hybrid"} & {name for name, _ in rows}
    assert "can't be split by layers" in found.refused["gpipe"]
    assert "too small to be sharded over 64" in found.refused["zero-2"]
    assert "Not for this network" in str(found)


def test_ten_thousand_workers_are_no_trouble() -> None:
    small = Profile([Layer(str(n), 100_000, 0.004, 0.008) for n in range(3)], rows=8)
    found = farandole.plan(small, workers="1..10000", servers=1, link="25Gbit")
    assert of(found, "ring", "seconds")[10_000] > 2 * 9_999 * 1e-5
    assert len(of(found, "zero-3", "seconds")) == 15


def test_fp16_never_takes_less_than_two_bytes() -> None:
    found = farandole.plan(PROFILE, workers=4, precision="mixed")
    assert of(found, "fp16", "sent")[4] == of(found, "ring", "sent")[4]


def test_tied_weights_have_one_gradient_and_frozen_ones_none() -> None:
    first, second, third = nn.Linear(300, 300), nn.Linear(300, 300), nn.Linear(300, 4)
    second.weight = first.weight
    third.requires_grad_(requires_grad=False)
    profile = farandole.plan(nn.Sequential(first, second, third), workers=1).profile
    assert profile.parameters == 300 * 300 + 2 * 300
    assert [layer.low_rank for layer in profile.layers] == [4 * 600 + 300, 300]


def test_zero_3_has_two_buckets_at_a_time() -> None:
    # Nothing computes for long, so all is gathered one after the other, and two are there.
    memory = of(farandole.plan(PROFILE, workers=8), "zero-3", "memory")[8]
    sizes = [bucket.values for bucket in PROFILE.buckets()]
    two = max(one + other for one, other in pairwise(sizes))
    assert memory == 16 * PROFILE.parameters / 8 + PROFILE.kept + 4 * two


def test_a_layer_that_stands_twice_ends_no_bucket() -> None:
    one = Layer("", 5_000_000, 0.1, 0.2)
    values = [bucket.values for bucket in Profile([one] * 4).buckets(most=25e6)]
    assert values == [5_000_000, 10_000_000, 5_000_000]


def test_jitter_costs_those_who_wait_and_not_those_who_don_t() -> None:
    calm, rough = (
        farandole.plan(PROFILE, workers=64, link="1000Gbit", jitter=jitter) for jitter in (0.0, 0.1)
    )
    waiting = of(rough, "ring", "seconds")[64] / of(calm, "ring", "seconds")[64]
    asynchronous = (
        of(rough, "asynchronous", "seconds")[64] / of(calm, "asynchronous", "seconds")[64]
    )
    assert waiting > 1.2
    assert asynchronous < 1.05


def test_failures_cost_more_the_more_can_fail() -> None:
    found = farandole.plan(PROFILE, workers=[10, 1000], mtbf="1000h", price=1.0, rows=10**6)
    lost = of(found, "ring", "lost")
    # By Young: every 3,286 s at 10 workers; the restart, half of that, and 15 s to write.
    assert lost[10] == pytest.approx((180 + 1643) / 360_000 + 15 / 3286, rel=1e-3)
    assert lost[1000] > 10 * lost[10]
    assert of(found, "asynchronous", "lost")[1000] < lost[10]


def test_failures_count_in_the_recommendation() -> None:
    robust, frail = (
        farandole.plan(PROFILE, workers="1..64", link="400Gbit", latency="1us", mtbf=mtbf)
        for mtbf in ("100000h", "10h")
    )
    assert frail.recommendation.workers < robust.recommendation.workers


def test_the_recommendation_is_exact_and_says_why(plan: Plan) -> None:
    found = plan.recommendation
    assert found.strategy == "allreduce"
    assert found.workers == 256
    seconds = plan.table.query("workers == 256").set_index("strategy")["seconds"]
    fastest = seconds.drop(list(INEXACT), errors="ignore").min()
    assert (seconds["allreduce"] == fastest) == ("the fastest that is exact" in found.reason)
    assert fastest >= 0.9 * seconds["allreduce"]


def test_what_does_not_fit_is_not_recommended() -> None:
    needed = 16 * PROFILE.parameters + PROFILE.kept
    found = farandole.plan(PROFILE, workers=[8], link="100Gbit", memory=needed * 0.6)
    assert found.recommendation.strategy not in (None, "allreduce", "ring", *INEXACT)
    assert "allreduce doesn't fit" in found.recommendation.reason
    nothing = farandole.plan(PROFILE, workers=[8], memory="1MB").recommendation
    assert nothing.strategy is None
    assert "Nothing fits into 1 MB" in str(nothing)


def test_latency_is_named_where_it_rules() -> None:
    small = Profile([Layer("a", 1000, 1e-4, 2e-4)], rows=1)
    reason = farandole.plan(small, workers="1..512", latency="50us").recommendation.reason
    assert "latency of all-reduce's ring outweighs its bytes" in reason


def test_a_network_is_measured_here() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
    profile = farandole.plan(network, workers=2, shape=(1, 8, 8), batch=4).profile
    assert [layer.name for layer in profile.layers] == ["0", "3"]
    assert profile.parameters == sum(p.numel() for p in network.parameters())
    assert all(layer.forward > 0 and layer.backward > 0 for layer in profile.layers)
    # The input, and what the second layer takes, of 4 rows each; ReLU keeps what it gives.
    assert profile.kept == pytest.approx(4 * (64 + 144) * 4, rel=0.8)
    assert network[0].weight.grad is None


def test_given_seconds_are_parted_by_operations() -> None:
    network = nn.Sequential(nn.Linear(100, 300), nn.Linear(300, 100), nn.Linear(100, 100))
    profile = farandole.plan(network, workers=1, step_time="1s").profile
    assert profile.seconds == pytest.approx(1)
    first, second, third = (layer.forward for layer in profile.layers)
    assert first == pytest.approx(second)
    assert first == pytest.approx(3 * third)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"network": "nowhere"}, "There is no folder 'nowhere'"),
        ({"network": "mlp:a,b"}, "needs widths"),
        ({"network": "torch.nn:Nothing"}, "can't be found"),
        ({"network": 3}, "Received: int"),
        ({"network": nn.Conv2d(1, 1, 3)}, "Give its shape"),
        ({"network": nn.Linear(3, 1), "shape": (4,)}, "can't take the example"),
        ({"network": nn.ReLU(), "shape": (4,)}, "no parameters to train"),
        ({"network": nn.Linear(3, 1), "batch": 0}, "batch must be a positive integer"),
        ({"jitter": 2}, "jitter must be a number from 0 to below 1"),
        ({"precision": "int3"}, "precision must be 'float32' or 'mixed'"),
        ({"link": "fast"}, "link must be"),
        ({"rows": 0, "price": 1.0}, "rows must be a positive integer"),
        ({"micro_batches": 0}, "micro_batches must be a positive integer"),
        ({"price": -1.0, "rows": 3}, "price must be a number that is not negative"),
        ({"price": 1.0}, "go together"),
        ({"batch": 8}, "leave out batch and shape"),
        ({"shape": (8,)}, "leave out batch and shape"),
        ({"overlap": "no"}, "overlap must be True or False"),
        ({"device": "tpu"}, "device must be 'cpu' or 'gpu'"),
        ({"workers": "1..100000"}, "at most 20,000"),
        ({"network": nn.Linear(4, 1), "shape": (-4,)}, "shape must be"),
        ({"network": nn.Linear(4, 1), "shape": "4"}, "shape must be"),
        ({"network": "torch.nn:Linear"}, "called without arguments"),
        ({"network": nn.LazyLinear(3), "shape": (4,)}, "lazy layers"),
    ],
)
def test_what_can_t_be_meant_is_told(options: dict[str, object], words: str) -> None:
    given = {"network": PROFILE, "workers": 2, **options}
    with pytest.raises(InputError, match=words):
        farandole.plan(given.pop("network"), **given)  # type: ignore[arg-type]


def test_a_profile_needs_layers() -> None:
    with pytest.raises(InputError, match="needs layers with parameters"):
        Profile([])


def test_auto_shards_only_what_does_not_fit() -> None:
    network = nn.Sequential(*[nn.Linear(100, 100) for _ in range(10)])
    whole = 16 * sum(p.numel() for p in network.parameters())
    assert choose(network, 4, memory=whole).strategy.name == "allreduce"
    stages = [
        getattr(choose(network, 4, memory=whole * share).strategy, "stage", 0)
        for share in (0.99, 0.6, 0.4, 0.3, 0.01)
    ]
    assert stages == [1, 2, 3, 3, 3]
    assert choose(network, 1, memory=1.0).strategy.name == "allreduce"


def test_auto_heeds_what_the_recipe_allows() -> None:
    from farandole.api.strategy_choice import check_strategy

    network = nn.Linear(100, 100)
    recipe = Recipe(sync_batch_norm=True)
    found = choose(
        network, 2, memory=1.0, check=lambda one: check_strategy(one, network, recipe, 2)
    ).strategy
    assert found.is_whole


def test_training_takes_auto() -> None:
    rows = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "label": [1.0, 3.0, 5.0, 7.0]})
    result = farandole.train(
        nn.Linear(1, 1), rows, features="x", loss="mse", strategy="auto", progress=False
    )
    assert len(result.history) == 1
