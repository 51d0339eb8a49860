"""Several outputs, each with a label, a loss and metrics of its own; and a class a position."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from tests.training import oracle
from torch import nn
from torch.nn import functional as F

import farandole
from farandole.artifact import Artifact
from farandole.engines.inline import InlineEngine
from farandole.errors import InputError
from farandole.inference.answer import Answer
from farandole.networks import Ragged

ROWS = 300
DIGITS = load_digits()
PIXELS = (DIGITS.data[:ROWS] / 16).astype(np.float32)
DIGIT = DIGITS.target[:ROWS]
INK = PIXELS.mean(1)
TABLE = pd.DataFrame({"features": list(PIXELS), "digit": DIGIT, "ink": INK})
LOSS = {"digit": "cross_entropy", "ink": "mse"}


class TwoHeads(nn.Module):
    def __init__(self, form: str = "tuple") -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Linear(64, 16)
            self.kind = nn.Linear(16, 10)
            self.value = nn.Linear(16, 1)
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        hidden = torch.relu(self.body(x))
        digit, ink = self.kind(hidden), self.value(hidden)
        if self.form == "dict":
            return {"ink": ink, "hidden": hidden, "digit": digit}
        return digit, ink


def train(network: nn.Module | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {
        "features": "features",
        "label": ["digit", "ink"],
        "loss": LOSS,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "batch_size": 50,
        "engine": "local",
        "progress": False,
    }
    return farandole.train(network or TwoHeads(), **{"data": TABLE, **given, **options})


def by_hand(weights: tuple[float, float] = (1.0, 1.0), epochs: int = 1) -> tuple[nn.Module, Any]:
    """The same with plain torch, over the batches that the order prescribes."""
    network = TwoHeads()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    x, digit, ink = torch.tensor(PIXELS), torch.tensor(DIGIT), torch.tensor(INK)
    parts = []
    for epoch in range(epochs):
        for rows in oracle.batches(ROWS, 50, epoch):
            optimizer.zero_grad()
            kind, value = network(x[rows])
            losses = F.cross_entropy(kind, digit[rows]), F.mse_loss(value[:, 0], ink[rows])
            (weights[0] * losses[0] + weights[1] * losses[1]).backward()
            optimizer.step()
            right = (kind.argmax(1) == digit[rows]).double().mean()
            parts.append((*(one.item() for one in losses), right.item(), len(rows)))
    return network, np.array(parts)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_loss_is_the_weighted_sum_of_the_heads(workers: int) -> None:
    result = train(loss_weights={"ink": 3.0}, num_workers=workers, validation=None)
    network, parts = by_hand((1.0, 3.0))
    np.testing.assert_allclose(
        oracle.parameters(result.network), oracle.parameters(network), rtol=1e-4, atol=1e-6
    )
    row = result.history.iloc[0]
    means = np.average(parts[:, :3], axis=0, weights=parts[:, 3])
    assert row["train_digit_loss"] == pytest.approx(means[0], rel=1e-5)
    assert row["train_ink_loss"] == pytest.approx(means[1], rel=1e-5)
    assert row["train_loss"] == pytest.approx(means[0] + 3 * means[1], rel=1e-5)
    assert row["train_digit_accuracy"] == pytest.approx(means[2])
    assert "train_ink_mae" in row
    assert "train_ink_accuracy" not in row


def test_each_head_predicts(tmp_path: Any) -> None:
    result = train(
        epochs=40,
        optimizer="adam",
        learning_rate=0.02,
        metrics={"digit": ["accuracy", "f1"], "ink": "r2"},
    )
    found = result.predictor(TABLE)
    assert list(found.heads) == ["digit", "ink"]
    right = (found["digit"].prediction == DIGIT).mean()
    assert right > 0.9
    assert found["digit"].probability.shape == (ROWS, 10)
    assert np.corrcoef(found["ink"].prediction, INK)[0, 1] > 0.7
    with pytest.raises(InputError, match="several heads: digit, ink"):
        _ = found.prediction
    with pytest.raises(InputError, match="no head 'digt'"):
        found["digt"]
    last = result.history.iloc[-1]
    assert last["train_digit_f1"] > 0.9
    assert "train_ink_r2" in last
    result.save(tmp_path / "saved")
    loaded = Artifact.load(tmp_path / "saved")
    assert loaded.signature == result.signature


def test_outputs_by_name() -> None:
    tuples, named = train(), train(TwoHeads("dict"))
    assert named.history.filter(like="loss").equals(tuples.history.filter(like="loss"))
    assert [(head.name, head.output) for head in named.signature.heads] == [
        ("digit", "digit"),
        ("ink", "ink"),
    ]
    found, same = named.predictor(TABLE), tuples.predictor(TABLE)
    assert np.array_equal(found["digit"].prediction, same["digit"].prediction)
    one = train(TwoHeads("dict"), label="digit", loss="cross_entropy")
    assert one.predictor(TABLE).probability.shape == (ROWS, 10)


def test_a_list_of_metrics_is_for_the_heads_that_they_fit() -> None:
    row = train(loss=["cross_entropy", "mse"], metrics=["auc", "mae"]).history.iloc[0]
    columns = [name for name in row.index if name.startswith("train_")]
    assert columns == [
        *("train_loss", "train_digit_loss", "train_ink_mae", "train_ink_loss", "train_digit_auc")
    ]


class LastLayer(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.kind, self.value, self.form = nn.Linear(16, 10), nn.Linear(16, 1), form

    def forward(self, hidden: torch.Tensor) -> Any:
        found = self.kind(hidden), self.value(hidden)
        return dict(zip(LOSS, found, strict=True)) if self.form == "dict" else found


def test_heads_at_the_end_of_a_pipeline() -> None:
    network = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), LastLayer("tuple"))
    one, two = train(network), train(network, num_workers=2, strategy="pipeline")
    for name in ("train_loss", "train_digit_loss", "train_ink_loss", "train_digit_accuracy"):
        assert two.history[name][0] == pytest.approx(one.history[name][0], rel=1e-5), name
    named = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), LastLayer("dict"))
    with pytest.raises(InputError, match="returns a dict, but a pipeline's last stage"):
        train(named, num_workers=2, strategy="pipeline")


class WithLogits(nn.Module):
    """As many libraries return what they found."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> Any:
        return SimpleNamespace(logits=self.layer(x), attentions=None)


def test_an_object_with_logits() -> None:
    network = WithLogits()
    result = train(network, label="digit", loss="cross_entropy", epochs=2)
    plain = train(network.layer, label="digit", loss="cross_entropy", epochs=2)
    assert result.history["train_loss"].equals(plain.history["train_loss"])
    assert np.array_equal(result.predictor(TABLE).prediction, plain.predictor(TABLE).prediction)


class Named(NamedTuple):
    first: torch.Tensor
    logits: torch.Tensor


def test_the_fields_of_a_named_tuple_are_outputs_like_any_tuples() -> None:
    class Naming(TwoHeads):
        def forward(self, x: torch.Tensor) -> Any:
            return Named(*super().forward(x))

    found, plain = (train(network, epochs=2).history for network in (Naming(), TwoHeads()))
    assert found["train_ink_loss"].equals(plain["train_ink_loss"])
    assert found["train_digit_loss"].equals(plain["train_digit_loss"])


def test_two_outputs_that_learn_one_label() -> None:
    class Auxiliary(TwoHeads):
        def forward(self, x: torch.Tensor) -> Any:
            digit, _ = super().forward(x)
            return {"main": digit, "auxiliary": 2 * digit}

    loss = {"main": "cross_entropy", "auxiliary": "cross_entropy"}
    row = train(Auxiliary(), label="digit", loss=loss, loss_weights={"auxiliary": 0.3})
    first = row.history.iloc[0]
    assert first["train_loss"] == pytest.approx(
        first["train_main_loss"] + 0.3 * first["train_auxiliary_loss"]
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"loss": {"digt": "mse", "ink": "mse"}}, "a head 'digt', which is neither.*'digit'"),
        ({"loss_weights": {"inc": 1.0}}, "no head 'inc' to weight. Did you mean 'ink'"),
        ({"loss_weights": {"ink": -1.0}}, r"loss_weights\['ink'\]"),
        ({"loss_weights": 3}, "must be a dict of heads"),
        ({"loss": lambda o, *t: o[0].sum(), "loss_weights": {"ink": 1.0}}, "takes all outputs"),
        ({"metrics": {"digit": ["r2"]}}, "'r2' is about numbers"),
        ({"metrics": {"size": ["r2"]}}, "metrics has no head 'size'.*digit, ink"),
        ({"network": TwoHeads("dict"), "label": "ink", "loss": "mse", "metrics": ["auc"]}, "'auc'"),
        ({"label": "digit", "loss": "cross_entropy"}, "2 outputs for 1 label columns"),
        ({"loss": {}}, "a loss for each head"),
        (
            {"loss": {"digit": nn.CrossEntropyLoss(torch.ones(10)), "ink": "mse"}},
            "CrossEntropyLoss has class weights.*one head",
        ),
        ({"loss": {"digit": ["mse"]}}, "takes one loss"),
        ({"class_weights": [1.0] * 10}, "class_weights are for a network with one head"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_heads_that_can_not_be(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        train(**options)


POSITIONS = 5


def sequences(rows: int = 60) -> pd.DataFrame:
    """Tokens, and for each whether it is greater than the one before it."""
    tokens = np.random.default_rng(0).integers(0, 6, (rows, POSITIONS))
    rises = np.diff(tokens, axis=1, prepend=0) > 0
    return pd.DataFrame({"features": list(tokens), "label": list(rises.astype(int))})


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 8)
        self.recurrent = nn.GRU(8, 16, batch_first=True)
        self.classes = nn.Linear(16, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.classes(self.recurrent(self.embedding(tokens))[0]).transpose(1, 2)


def test_a_class_for_each_position() -> None:
    table = sequences()
    torch.manual_seed(0)
    network = Tagger()
    given = {"label": "label", "loss": "cross_entropy", "metrics": ["accuracy", "f1"]}
    options = {**given, "optimizer": "adam", "learning_rate": 0.05, "epochs": 40}
    result = train(network, data=table, **options)
    labels = np.stack(list(table["label"]))
    found = result.predictor(table)
    assert found.prediction.shape == (60, POSITIONS)
    assert (found.prediction == labels).mean() > 0.9
    with torch.no_grad():
        expected = result.network(torch.from_numpy(np.stack(list(table["features"])))).softmax(1)
    assert found.probability is not None
    np.testing.assert_allclose(found.probability, expected.transpose(1, 2), rtol=1e-5)
    assert result.history["train_accuracy"].iloc[-1] > 0.8
    assert result.history["train_f1"].iloc[-1] > 0.8
    assert result.signature.positions == (POSITIONS,)


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_a_loss_of_ones_own_at_each_position(kind: str) -> None:
    table = sequences()
    table["label"] = [np.asarray(row, kind) for row in table["label"]]
    result = train(Tagger(), data=table, label="label", loss=lambda o, t: F.cross_entropy(o, t))
    assert result.signature.positions == (POSITIONS,)
    assert set(result.predictor(table).prediction.ravel()) <= {0, 1}


def test_classes_at_positions_are_whole_numbers() -> None:
    table = sequences()
    table["label"] = [np.asarray(row, "float64") for row in table["label"]]
    with pytest.raises(InputError, match=r"class for each position.*whole.*array<int>"):
        train(Tagger(), data=table, label="label", loss="cross_entropy")


def test_classes_on_the_wrong_axis_are_told_so() -> None:
    class Wrong(Tagger):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().forward(tokens).transpose(1, 2)

    with pytest.raises(InputError, match=r"rows, classes, positions.*transpose\(1, 2\)"):
        train(Wrong(), data=sequences(), label="label", loss="cross_entropy")


def test_axes_that_nothing_is_known_about_are_not_guessed() -> None:
    predictor = farandole.inference.Predictor(Tagger())
    tokens = np.stack(list(sequences()["features"]))
    found = predictor({"features": tokens})
    assert found.raw.shape == (60, 2 * POSITIONS)
    with pytest.raises(InputError, match="which of the axes are classes isn't known"):
        _ = found.prediction


class ByName(nn.Module):
    """Takes its columns by name, in whatever order they come."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(3, 2), nn.Linear(1, 2)

    def forward(
        self, narrow: torch.Tensor, unused: torch.Tensor | None = None, wide: Any = None
    ) -> torch.Tensor:
        assert unused is None
        return self.wide(wide) + self.narrow(narrow[:, None])


class FromDict(ByName):
    def forward(self, columns: dict[str, torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        return super().forward(columns["narrow"], None, columns["wide"])


@pytest.mark.parametrize("kind", [ByName, FromDict])
@pytest.mark.parametrize("workers", [1, 2])
def test_inputs_by_name(kind: type[ByName], workers: int, tmp_path: Any) -> None:
    random = np.random.default_rng(0)
    wide, narrow = random.normal(size=(60, 3)).astype("f"), random.normal(size=60).astype("f")
    label = (wide[:, 0] + narrow > 0).astype(int)
    table = pd.DataFrame({"wide": list(wide), "narrow": narrow, "label": label})
    torch.manual_seed(0)
    network = kind()
    options: dict[str, Any] = {"label": "label", "loss": "cross_entropy", "num_workers": workers}
    result = train(network, data=table, features=["wide", "narrow"], epochs=20, **options)
    with torch.no_grad():
        if kind is ByName:
            output = result.network(torch.tensor(narrow), wide=torch.tensor(wide))
        else:
            output = result.network({"wide": torch.tensor(wide), "narrow": torch.tensor(narrow)})
    expected = output.argmax(1).numpy()
    assert (expected == label).mean() > 0.8
    assert np.array_equal(result.predictor(table).prediction, expected)
    result.save(tmp_path / "saved")
    loaded = Artifact.load(tmp_path / "saved")
    found = farandole.inference.Predictor(loaded.network, loaded.signature)(table)
    assert np.array_equal(found.prediction, expected)


class RaggedTagger(nn.Module):
    """A class for each token of sentences that differ in length."""

    ragged_axes = (1,)

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embedding, self.classes = nn.Embedding(6, 8), nn.Linear(8, 3)

    def forward(self, tokens: Ragged) -> Any:
        return replace(tokens, values=self.classes(self.embedding(tokens.values)))


def sentences(rows: int = 50) -> pd.DataFrame:
    random = np.random.default_rng(1)
    tokens = [random.integers(0, 6, random.integers(1, 7)) for _ in range(rows)]
    return pd.DataFrame({"features": tokens, "label": [row % 3 for row in tokens]})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_class_for_each_position_of_rows_that_differ_in_length(workers: int) -> None:
    table, network = sentences(), RaggedTagger()
    options = {"label": "label", "loss": "cross_entropy", "metrics": ["accuracy", "f1", "auc"]}
    first = train(network, data=table, **options, batch_size=50, num_workers=workers)
    with torch.no_grad():
        means = [
            F.cross_entropy(network(Ragged.of([torch.tensor(x)])).values, torch.tensor(y)).item()
            for x, y in zip(table["features"], table["label"], strict=True)
        ]
    assert first.steps["loss"][0] == pytest.approx(np.mean(means), rel=1e-5)
    result = train(network, data=table, **options, epochs=40, learning_rate=2.0)
    assert result.history["train_accuracy"].iloc[-1] == 1
    assert result.history["train_f1"].iloc[-1] == 1
    found = result.predictor(table)
    assert found.lengths is not None
    assert found.lengths.tolist() == [len(row) for row in table["features"]]
    np.testing.assert_array_equal(found.prediction, np.concatenate(list(table["label"])))
    answer = Answer("all")
    column = answer.to_arrow(found)
    assert column.field("prediction").to_pylist() == [row.tolist() for row in table["label"]]
    assert len(column.field("probability")[0].as_py()[0]) == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_a_class_for_each_position_of_rows_that_happen_to_have_one_length(workers: int) -> None:
    tokens = list(np.random.default_rng(1).integers(0, 6, (20, 4)))
    table = pd.DataFrame({"features": tokens, "label": [row % 3 for row in tokens]})
    options = {"label": "label", "loss": "cross_entropy", "metrics": ["accuracy"]}
    result = train(RaggedTagger(), data=table, **options, batch_size=20, num_workers=workers)
    with torch.no_grad():
        output = RaggedTagger()(Ragged.of([torch.tensor(row) for row in tokens])).values
    expected = F.cross_entropy(output, torch.tensor(np.concatenate(list(table["label"]))))
    assert result.steps["loss"][0] == pytest.approx(expected.item(), rel=1e-5)
    found = result.predictor(table)
    assert found.lengths is not None  # as where lengths differ
    assert found.lengths.tolist() == [4] * 20
    assert found.prediction.shape == (80,)


def test_labels_that_differ_in_length_need_outputs_that_do() -> None:
    class Fixed(RaggedTagger):
        def forward(self, tokens: Ragged) -> Any:
            return self.classes(self.embedding(tokens.padded())).transpose(1, 2)

    given = {"label": "label", "loss": "cross_entropy"}
    with pytest.raises(InputError, match="return its outputs as Ragged"):
        train(Fixed(), data=sentences(), **given)
    table = sentences()
    longer = table.assign(label=[np.append(row, 0) for row in table["label"]])
    with pytest.raises(InputError, match="as many labels as it has elements"):
        train(RaggedTagger(), data=longer, **given)


def test_rows_without_elements_are_no_trouble_for_metrics() -> None:
    table = sentences()
    for number in range(4):
        table.at[number, "features"] = table.at[number, "label"] = np.zeros(0, np.int64)
    options = {"label": "label", "loss": "cross_entropy", "metrics": ["f1", "auc"]}
    result = train(RaggedTagger(), data=table, **options, batch_size=2, shuffle=False)
    assert np.isfinite(result.history["train_f1"]).all()


def test_a_loss_a_row_without_a_label_and_with_features_by_name() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, columns: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.layer(columns["features"]) * columns["ink"][:, None]

    def rows(output: torch.Tensor, columns: Any) -> torch.Tensor:
        return (output - columns["features"]).square().mean(1)

    result = train(Pair(), features=["features", "ink"], label=None, loss=rows, epochs=2)
    assert result.history["train_loss"].is_monotonic_decreasing


def test_a_heads_loss_is_computed_once_a_step() -> None:
    """It goes into the gradient and into the history alike."""
    calls: list[int] = []

    def counted(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(len(target))
        return (output[:, 0] - target).square()

    given = {"loss": {"digit": "cross_entropy", "ink": counted}, "engine": InlineEngine()}
    before = [0]
    for epochs in (1, 2):
        calls.clear()
        result = train(epochs=epochs, **given)
        before.append(len(calls))
    assert before[2] - before[1] == ROWS // 50
    plain = train(epochs=2)
    for name in ("train_digit_loss", "train_ink_loss"):
        np.testing.assert_allclose(result.history[name], plain.history[name], rtol=1e-6)
