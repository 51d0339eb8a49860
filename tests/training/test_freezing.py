"""Layers that don't learn, learn later, or learn at a rate of their own: against loops by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.training import oracle
from tests.training.networks import Backbone, Named
from tests.training.partial_oracle import by_hand, group
from tests.training.trial import FEATURES, LABELS, ROWS, assert_same, train
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from farandole.errors import InputError
from farandole.training.freezing import Frozen, frozen_layers, head_of
from farandole.training.optimizers import groups, make


def assert_untouched(trained: nn.Module, before: nn.Module, prefixes: tuple[str, ...]) -> None:
    """Bit for bit, parameters and buffers; and all others have changed."""
    old = before.state_dict()
    for name, tensor in trained.state_dict().items():
        if "num_batches" not in name:
            assert torch.equal(tensor, old[name]) == name.startswith(prefixes), name


@pytest.mark.parametrize(
    ("network", "freeze", "rest", "cache"),
    [
        (Named(), "all but head", ["body", "norm"], True),
        (Backbone(), "all but head", ["body", "norm"], True),
        (Backbone(), "all but head", ["body", "norm"], False),
        (Backbone(), ["body", "norm"], ["body", "norm"], True),
        (Backbone(dropout=0), ["body"], ["body"], True),
        (Backbone(dropout=0), ["body"], ["body"], False),
        (Backbone(dropout=0), ["body.1", "body.4", "body.0"], ["body"], True),
    ],
    ids=["named", "last", "last, uncached", "layers", "a norm", "a norm, uncached", "parts"],
)
def test_frozen_layers_keep_their_bits(
    network: Backbone, freeze: Any, rest: list[str], cache: bool
) -> None:
    result = train(network, freeze=freeze, cache_features=cache)
    learn = ["classifier"] if "norm" in rest else ["norm", "classifier"]
    expected = by_hand(network, lambda n: [group(*map(n.get_submodule, learn))], at_rest=rest)
    assert_same(result, expected)
    prefixes = ("body", "norm") if "norm" in rest else ("body",)
    assert_untouched(result.network, network, prefixes)
    assert all(p.requires_grad for p in result.network.parameters())


def test_weight_decay_and_momentum_are_for_what_learns() -> None:
    network = Backbone()
    options = {"momentum": 0.9, "weight_decay": 0.1}
    result = train(network, freeze=["body", "norm"], optimizer="sgd", optimizer_options=options)
    assert_untouched(result.network, network, ("body", "norm"))
    expected = by_hand(
        network,
        lambda n: [group(n.classifier)],
        at_rest=["body", "norm"],
        optimizer=lambda g: torch.optim.SGD(g, lr=0.05, **options),
    )
    assert_same(result, expected)


def test_everything_learns_from_an_epoch_on() -> None:
    """The head keeps its moments, the body gets its own only then; statistics stay as they are."""
    network = Backbone(dropout=0)

    def thaw(trained: Any, optimizer: torch.optim.Optimizer, epoch: int) -> list[str] | None:
        if epoch == 3:
            optimizer.add_param_group(group(trained.body, trained.norm))
        return ["body.1", "norm"] if epoch >= 3 else None

    options: dict[str, Any] = {"optimizer": "sgd", "optimizer_options": {"momentum": 0.9}}
    result = train(network, freeze="all but head", unfreeze_at=3, epochs=4, **options)
    expected = by_hand(
        network,
        lambda n: [group(n.classifier)],
        at_rest=["body", "norm"],
        optimizer=lambda g: torch.optim.SGD(g, lr=0.05, momentum=0.9),
        epochs=4,
        before_epoch=thaw,
    )
    assert_same(result, expected)
    before = train(network, freeze="all but head", epochs=2, **options)
    assert result.steps["loss"][:8].tolist() == pytest.approx(before.steps["loss"].tolist())
    for name in ("body.0.weight", "body.1.running_mean", "norm.weight", "norm.running_var"):
        same = torch.equal(result.network.state_dict()[name], network.state_dict()[name])
        assert same == ("running" in name), name


def test_dropout_wakes_up_and_statistics_do_not() -> None:
    network = Backbone()
    frozen = Frozen.of(network, "all but head")
    frozen.unfreeze()
    network.train()
    frozen.set_eval_mode()
    asleep = [name for name, module in network.named_modules() if not module.training]
    assert asleep == ["body.1", "norm"]


@pytest.mark.parametrize("schedule", ["cosine", lambda o: lr_scheduler.StepLR(o, 2, 0.5)])
def test_rates_of_layers_follow_the_schedule_together(schedule: Any) -> None:
    network = oracle.classifier()
    rates = {"0": 0.01, "0.bias": 0.002}
    result = train(network, learning_rates=rates, schedule=schedule, warmup=3, optimizer="sgd")
    updates = 2 * -(-ROWS // 32)
    one = train(network, schedule=schedule, warmup=3, optimizer="sgd").steps["learning_rate"]
    assert len(one) == updates
    assert result.steps["learning_rate"].tolist() == one.tolist(), "that of the rest"

    def pace(optimizer: torch.optim.Optimizer, step: int) -> None:
        for part, base in zip(optimizer.param_groups, (0.05, 0.01, 0.002), strict=True):
            part["lr"] = base * one[step] / 0.05

    def parted(n: Any) -> list[dict[str, Any]]:
        return [group(n[2]), {"params": [n[0].weight]}, {"params": [n[0].bias]}]

    expected = by_hand(
        network, parted, optimizer=lambda g: torch.optim.SGD(g, lr=0.05), before_step=pace
    )
    assert_same(result, expected)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop", torch.optim.Adagrad])
def test_optimizers_take_groups(optimizer: Any) -> None:
    network = oracle.classifier()
    result = train(network, learning_rates={"0": 1e-12}, optimizer=optimizer)
    moved = [
        (a - b).abs().max().item()
        for a, b in zip(result.network.parameters(), network.parameters(), strict=True)
    ]
    assert max(moved[:2]) < 1e-6 < 1e-2 < min(moved[2:])


def test_frozen_parameters_have_no_state_until_they_learn() -> None:
    network = oracle.classifier()
    frozen = Frozen.of(network, ["0"])
    optimizer = make("adam", groups(network, 0.1, later=frozen.parameters), 0.1, {})
    network(FEATURES).sum().backward()
    optimizer.step()
    assert set(optimizer.state) == {*network[2].parameters()}
    frozen.unfreeze()
    network(FEATURES).sum().backward()
    optimizer.step()
    assert set(optimizer.state) == {*network.parameters()}
    steps = [int(optimizer.state[p]["step"]) for p in network.parameters()]
    assert steps == [1, 1, 2, 2]


def test_what_was_frozen_before_stays_so() -> None:
    network = Backbone(dropout=0)
    network.body[0].requires_grad_(False)
    result = train(network, freeze=["norm"], unfreeze_at=2)
    old = network.state_dict()
    for name in ("body.0.weight", "body.0.bias"):
        assert torch.equal(result.network.state_dict()[name], old[name])
        assert not result.network.get_parameter(name).requires_grad
    assert not torch.equal(result.network.get_parameter("norm.weight"), network.norm.weight)
    assert result.network.get_parameter("norm.weight").requires_grad


def test_a_solver_over_a_frozen_body() -> None:
    """Against L-BFGS of torch, on a logistic regression of the body's features."""
    network = Backbone()
    with pytest.raises(InputError, match=r"'body\.1' \(BatchNorm1d\)"):
        train(network, optimizer="lbfgs", learning_rate=1e-3)
    options: dict[str, Any] = {"optimizer": "lbfgs", "learning_rate": 1e-3, "epochs": 200}
    result = train(network, freeze="all but head", **options)
    assert_untouched(result.network, network, ("body", "norm"))
    network.eval()
    with torch.no_grad():
        features = network.norm(network.body(FEATURES)).tanh().double()
    head = nn.Linear(6, 3).double()
    alone = torch.optim.LBFGS(
        head.parameters(), max_iter=500, line_search_fn="strong_wolfe", tolerance_change=1e-12
    )

    def closure() -> torch.Tensor:
        alone.zero_grad()
        loss = F.cross_entropy(head(features), LABELS)
        loss.backward()
        return loss

    alone.step(closure)
    best = closure().item()
    assert result.history["train_loss"].iloc[-1] == pytest.approx(best, rel=1e-3)


def test_which_layers_stay_in_evaluation_mode() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Sequential(nn.Linear(2, 2)))
    assert frozen_layers(network, "all but head") == [network[0], network[1]]
    assert frozen_layers(network, ["0"]) == [network[0]]
    assert frozen_layers(network, ["2.0"]) == [network[2], network[2][0]]
    assert frozen_layers(network, ["1"]) == [network[1]]
    assert frozen_layers(network, None) == []
    block = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Dropout()), nn.Linear(2, 1))
    Frozen.of(block, ["0.0"]).set_eval_mode()
    assert [name for name, m in block.named_modules() if not m.training] == ["0", "0.0"]


def test_what_the_head_is() -> None:
    from farandole.networks import CNN

    assert head_of(CNN(channels=1, outputs=2)) == "head"
    assert head_of(Named()) == "classifier"
    assert head_of(Backbone()) == "classifier.1"
    scaled = nn.Sequential(nn.Linear(2, 2), nn.utils.parametrizations.weight_norm(nn.Linear(2, 1)))
    assert head_of(scaled) == "1"
    network = Backbone()
    network.head = "clasifier"  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"no layer 'clasifier'\. Did you mean 'classifier'"):
        head_of(network)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze": "body"}, r"freeze=\['body'\]"),
        ({"freeze": []}, "at least one"),
        ({"freeze": 3}, "list of layer names"),
        ({"freeze": ["bodi"]}, "freeze: the network has no layer 'bodi'. Did you mean 'body'"),
        ({"freeze": ["xyz"]}, "There are body, norm, classifier"),
        ({"freeze": ["body", "norm", "classifier"]}, "no parameters to train"),
        ({"freeze": ["classifier.0"], "optimizer": "sgd", "epochs": 0}, "epochs"),
        ({"unfreeze_at": 2}, "only with freeze"),
        ({"cache_features": False}, "only with freeze"),
        ({"freeze": ["body"], "unfreeze_at": 1}, "at least 2, and at most epochs=2"),
        ({"freeze": ["body"], "unfreeze_at": 3}, "unfreeze_at=3"),
        ({"freeze": ["body"], "unfreeze_at": True}, "unfreeze_at=True"),
        ({"learning_rates": {}}, "dict of layer names"),
        ({"learning_rates": {"body": 0}}, r"learning_rates\['body'\] must be a positive"),
        ({"learning_rates": {"boddy": 1e-3}}, "Did you mean 'body'"),
        ({"learning_rates": {"body": 1e-3}, "freeze": ["body"]}, "nothing in 'body' learns"),
        ({"learning_rates": {"body": 1e-3, "body.3": 1.0}}, "nothing in 'body.3' learns"),
        ({"learning_rates": {"body": 1e-3}, "optimizer": lambda p: None}, "by name or class"),
        ({"learning_rates": {"body": 1e-3, "norm": 1.0, "classifier": 1.0}}, "nothing has learn"),
        ({"freeze": ["body"], "unfreeze_at": 2, "max_steps": 4}, "there are 4 steps before"),
        ({"learning_rates": {"norm": 1e-3}, "optimizer": "gd"}, "no meaning for GradientDesc"),
        ({"freeze": ["norm"], "unfreeze_at": 2, "optimizer": "gd"}, "unfreeze_at has no meaning"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(Backbone(), **options)


def test_nothing_to_freeze() -> None:
    with pytest.raises(InputError, match="nothing to freeze: the head has all"):
        train(nn.Linear(4, 3), freeze="all but head")
    mine = Backbone()
    mine.body.requires_grad_(False)
    mine.norm.requires_grad_(False)
    result = train(mine, freeze="all but head")
    assert_untouched(result.network, mine, ("body", "norm"))


def test_patience_waits_for_what_is_still_frozen() -> None:
    """Nothing is ever better by that much, so patience ends an epoch after it begins to count."""
    options: dict[str, Any] = {"patience": 1, "min_delta": 1e6, "epochs": 8}
    network = Backbone(dropout=0)
    assert len(train(network, freeze="all but head", **options).history) == 2
    later = train(network, freeze="all but head", unfreeze_at=5, **options)
    assert len(later.history) == 5
    patient = train(network, freeze="all but head", unfreeze_at=5, **{**options, "patience": 2})
    assert len(patient.history) == 6, "patience starts over"


def test_what_learns_is_told() -> None:
    from farandole.training import TrainingStarted
    from farandole.training.progress_display import describe_start

    events: list[Any] = []
    train(Backbone(), freeze=["body"], epochs=1, observer=events.append)
    (started,) = [event for event in events if isinstance(event, TrainingStarted)]
    assert started.layers == ("norm (BatchNorm1d)", "classifier (Sequential)")
    assert started.learning == 2 * 6 + 6 * 3 + 3
    assert "(33 learn: norm (BatchNorm1d), classifier (Sequential))" in describe_start(started)
