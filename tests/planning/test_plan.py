from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from torch import nn

import farandole
from farandole.cli import main
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
    assert of(plan, "local-sgd", "sent")[256] == pytest.approx(2 * 255 / 256 * size / 16)


def test_money_is_workers_hours_and_price(plan: Plan) -> None:
    steps = 64_000_000 / 64 / 128
    seconds = of(plan, "ring", "seconds")[128]
    assert of(plan, "ring", "money")[128] == pytest.approx(steps * seconds / 3600 * 128 * 2.0)


def test_what_overlaps_is_hidden() -> None:
    overlapped, after = (
        farandole.plan(PROFILE, workers=8, link="100Gbit", overlap=overlap)
        for overlap in (True, False)
    )
    assert of(overlapped, "ring", "seconds")[8] < of(after, "ring", "seconds")[8]
    computing = PROFILE.seconds * 1.05
    assert of(overlapped, "ring", "seconds")[8] < computing + 0.02


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
        farandole.plan(PROFILE, workers="1..4096", link="400Gbit", latency="1us", mtbf=mtbf)
        for mtbf in ("100000h", "100h")
    )
    assert frail.recommendation.workers < robust.recommendation.workers


def test_the_recommendation_is_exact_and_says_why(plan: Plan) -> None:
    found = plan.recommendation
    assert found.strategy == "allreduce"
    assert found.workers == 256
    assert "the fastest that is exact" in found.reason


def test_what_does_not_fit_is_not_recommended() -> None:
    needed = 16 * PROFILE.parameters + PROFILE.kept
    found = farandole.plan(PROFILE, workers=[8], link="100Gbit", memory=needed * 0.6)
    assert found.recommendation.strategy not in (None, "allreduce", "ring", *INEXACT)
    assert "allreduce doesn't fit" in found.recommendation.reason
    nothing = farandole.plan(PROFILE, workers=[8], memory="1MB").recommendation
    assert nothing.strategy is None
    assert "Nothing fits into 0.001 GB" in str(nothing)


def test_latency_is_named_where_it_rules() -> None:
    small = Profile([Layer("a", 1000, 1e-4, 2e-4)], rows=1)
    reason = farandole.plan(small, workers="1..512", latency="50us").recommendation.reason
    assert "the ring's latency outweighs its bytes" in reason


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
        ({"batch": 0}, "batch must be a positive integer"),
        ({"jitter": 2}, "jitter must be a number between 0 and 1"),
        ({"precision": "int3"}, "precision must be 'float32' or 'mixed'"),
        ({"link": "fast"}, "link must be"),
    ],
)
def test_what_can_t_be_meant_is_told(options: dict[str, object], words: str) -> None:
    given = {"network": PROFILE, "workers": 2, **options}
    with pytest.raises(InputError, match=words):
        farandole.plan(given.pop("network"), **given)  # type: ignore[arg-type]


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--workers 1..8 --link 25Gbit --step-time 5ms --memory 16GB --price 2 --rows 100000"
    line = ["plan", "--network", "mlp:64,32,10", *options.split(), "--output", str(tmp_path)]
    assert main(line) == 0
    printed = capsys.readouterr().out
    assert "allreduce on" in printed
    table = pd.read_csv(tmp_path / "plan.csv")
    assert {"strategy", "workers", "seconds", "money", "fits"} <= set(table)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plan", "--network", "mlp:64,10", "--price", "2"]) == 1
    assert "go together" in capsys.readouterr().err


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
    from farandole.strategy_choice import check_strategy

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
