from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from tests.training import oracle
from tests.training.trial import (
    FEATURES,
    LABELS,
    ROWS,
    TABLE,
    assert_same,
    fit,
    own_mean,
    train,
)
from torch import nn
from torch.nn import functional as F

import farandole
from farandole.errors import InputError
from farandole.parallel.sync_batch_norm import convert_sync_batch_norm
from farandole.training import losses
from farandole.training.batches import Batch
from farandole.training.passes import NetworkPasses
from farandole.training.tally import Tally
from farandole.world import World


@pytest.mark.parametrize("way", ["class_weights", "inside the loss"])
def test_class_weights_are_those_of_torch(way: str) -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]))
    options = {"loss": weighted} if way != "class_weights" else {"class_weights": [0.2, 1.0, 3.0]}
    assert_same(train(**options), fit(loss=weighted))


def test_rows_with_the_weight_zero_count_for_nothing() -> None:
    keep = TABLE["label"] != 2
    table = TABLE.assign(weight=keep * 1.0)
    result = train(data=table, weight="weight", batch_size=ROWS, epochs=1)
    chosen = torch.from_numpy(keep.values)
    expected = F.cross_entropy(oracle.classifier()(FEATURES[chosen]), LABELS[chosen])
    assert result.steps["loss"][0] == pytest.approx(expected.item(), rel=1e-5)


def test_weights_need_a_loss_for_each_row() -> None:
    with pytest.raises(InputError, match="Weights need a loss for each row"):
        train(loss=own_mean, weight="weight", metrics=[])


class Peeking(nn.Module):
    """Remembers the precision in which its layers answer."""

    seen: set[torch.dtype]

    def __init__(self) -> None:
        super().__init__()
        self.inner = oracle.classifier()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(x)
        if self.training:
            Peeking.seen.add(output.dtype)
        return output


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)]
)
def test_precision(precision: str, dtype: torch.dtype) -> None:
    Peeking.seen = set()
    result = train(Peeking(), precision=precision, epochs=4)
    assert Peeking.seen == {dtype}
    assert {p.dtype for p in result.network.parameters()} == {torch.float32}
    assert result.history["train_loss"].is_monotonic_decreasing


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.value, self.kind = nn.Linear(4, 5), nn.Linear(5, 1), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(x).tanh()
        return self.kind(hidden), self.value(hidden)


def test_several_outputs_and_labels() -> None:
    network = TwoHeads()
    result = train(
        network,
        label=["label", "weight"],
        loss=["cross_entropy", "mse"],
        batch_size=ROWS,
        epochs=1,
    )
    kind, value = network(FEATURES)
    expected = F.cross_entropy(kind, LABELS) + F.mse_loss(
        value[:, 0], torch.from_numpy(TABLE["weight"].values).float()
    )
    assert result.steps["loss"][0] == pytest.approx(expected.item(), rel=1e-5)


def test_several_labels_side_by_side_for_one_output() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0], "a": [1.0, 0.0], "b": [3.0, 5.0]})
    network = nn.Linear(1, 2)
    result = train(network, table, features="x", label=["a", "b"], loss="mse", epochs=1)
    output = network(torch.tensor([[1.0], [2.0]]))
    expected = F.mse_loss(output, torch.tensor([[1.0, 3.0], [0.0, 5.0]]))
    assert result.steps["loss"][0] == pytest.approx(expected.item(), rel=1e-5)


def test_outputs_and_labels_that_do_not_pair_up() -> None:
    with pytest.raises(InputError, match="2 outputs for 1 label columns"):
        train(TwoHeads())
    with pytest.raises(InputError, match=r"\(3,\) values a row where the label has \(\)"):
        train(loss="mse")


def test_class_numbers_for_each_position_and_class_probabilities() -> None:
    tokens = np.random.default_rng(0).integers(0, 3, (20, 5))
    table = pd.DataFrame({"features": list(tokens), "label": list(tokens)})
    network = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3), Swap())
    result = train(network, table, batch_size=20, epochs=1)
    output = network(torch.from_numpy(tokens))
    expected = F.cross_entropy(output, torch.from_numpy(tokens)).item()
    assert result.steps["loss"][0] == pytest.approx(expected, rel=1e-5)
    soft = np.random.default_rng(0).dirichlet([1, 1, 1], ROWS)
    result = train(data=TABLE.assign(label=list(soft)), batch_size=ROWS, epochs=1)
    logits = oracle.classifier()(FEATURES)
    expected = F.cross_entropy(logits.double(), torch.from_numpy(soft)).item()
    assert result.steps["loss"][0] == pytest.approx(expected, rel=1e-5)
    right = logits.argmax(1).numpy() == soft.argmax(1)
    assert result.history["train_accuracy"][0] == pytest.approx(right.mean())


class Swap(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def test_batch_normalisation_survives_a_last_batch_of_one_row() -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    result = train(network, TABLE[:33], batch_size=32, epochs=3)
    assert len(result.steps) == 6
    assert int(result.network[1].num_batches_tracked) == 3


def test_several_answers_of_yes_or_no() -> None:
    table = TABLE.assign(label=[[float(label > 0), float(label > 1)] for label in TABLE["label"]])
    network = nn.Linear(4, 2)
    result = train(network, table, loss="binary_cross_entropy", batch_size=ROWS, epochs=1)
    wanted = torch.tensor(table["label"].tolist())
    output = network(FEATURES)
    expected = F.binary_cross_entropy_with_logits(output, wanted)
    assert result.steps["loss"][0] == pytest.approx(expected.item(), rel=1e-5)
    right = ((output > 0) == (wanted > 0.5)).double().mean()
    assert result.history["train_accuracy"][0] == pytest.approx(right.item())
    with torch.no_grad():
        probabilities = result.network(FEATURES).sigmoid()
    np.testing.assert_allclose(result.predictor(table).prediction, probabilities, rtol=1e-5)


@pytest.mark.parametrize(("shape", "counted"), [((4,), 0), ((4, 3, 3), 6)], ids=["row", "image"])
def test_one_row_is_normalised_by_its_own_values_if_it_has_several(
    shape: tuple[int, ...], counted: int
) -> None:
    random = np.random.default_rng(0)
    table = pd.DataFrame({"x": list(random.normal(size=(6, *shape))), "label": [0, 1] * 3})
    norm = nn.BatchNorm1d(4) if len(shape) == 1 else nn.BatchNorm2d(4)
    network = nn.Sequential(norm, nn.Flatten(), nn.LazyLinear(2)).double()
    network(torch.zeros(2, *shape, dtype=torch.float64))
    norm.reset_running_stats()
    result = farandole.train(network, table, features="x", batch_size=1, progress=False)
    assert int(result.network[0].num_batches_tracked) == counted  # type: ignore[index]
    assert bool(result.network[0].running_mean.any()) == bool(counted)  # type: ignore[index]


class Viewed(nn.Module):
    """Can't do with no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = self.norm(self.convolution(x))
        found: torch.Tensor = self.last(values.view(values.size(0), -1))
        return found


def pictures(rows: int) -> Batch:
    return Batch(rows, [torch.rand(rows, 1, 2, 2)], [torch.zeros(rows, dtype=torch.int64)], None)


def test_rows_that_stand_in_for_none_count_for_nothing() -> None:
    network = Viewed()
    passes = NetworkPasses(network, losses.resolve("cross_entropy"), "float32", "cpu")
    with pytest.raises(RuntimeError, match="0 elements"):
        passes.forward_backward(pictures(0), Tally())
    passes.make_collective(pictures(2))
    assert passes.is_collective
    before, tally = {n: t.clone() for n, t in network.state_dict().items()}, Tally()
    assert passes.forward_backward(pictures(0), tally) == (0.0, 0.0)
    assert all(p.grad is not None and not p.grad.any() for p in network.parameters())
    torch.testing.assert_close(dict(network.state_dict()), before, rtol=0, atol=0)
    assert all(module.training for module in network.modules())
    network.eval()
    passes.evaluate(pictures(0), tally)
    loss, weight = passes.forward_backward(pictures(3), tally)
    assert weight == 3
    assert tally.result("train", lambda sums: sums, 1)["train_loss"] == pytest.approx(loss / 3)


def test_norms_over_all_workers_get_no_rows_at_all() -> None:
    network = convert_sync_batch_norm(
        nn.Sequential(nn.Flatten(1), nn.BatchNorm1d(4)), World(size=2)
    ).eval()
    passes, seen = NetworkPasses(network, losses.resolve("cross_entropy"), "float32", "cpu"), []
    passes.make_collective(pictures(2))
    network.register_forward_hook(lambda module, rows, output: seen.append(len(output)))
    passes.evaluate(pictures(0), Tally())
    assert seen == [0]
