"""Which column a prediction becomes."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.errors import InputError
from farandole.inference import Predictor
from farandole.inference.answer import Answer
from farandole.inference.application import PackedApplication
from farandole.inference.packed_predictor import PackedPredictor

ROWS = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
LABELS = ("ant", "bee", "cat")
ARROW_TYPES = {
    "double": pa.float64(),
    "string": pa.string(),
    "array<double>": pa.list_(pa.float64()),
    "array<struct<class: double, probability: double>>": pa.list_(
        pa.struct({"class": pa.float64(), "probability": pa.float64()})
    ),
    "array<struct<label: string, probability: double>>": pa.list_(
        pa.struct({"label": pa.string(), "probability": pa.float64()})
    ),
    "struct<raw: array<double>, probability: array<double>, prediction: double>": pa.struct(
        {
            "raw": pa.list_(pa.float64()),
            "probability": pa.list_(pa.float64()),
            "prediction": pa.float64(),
        }
    ),
    "struct<raw: array<double>, probability: array<double>, prediction: string>": pa.struct(
        {
            "raw": pa.list_(pa.float64()),
            "probability": pa.list_(pa.float64()),
            "prediction": pa.string(),
        }
    ),
    "struct<prediction: double>": pa.struct({"prediction": pa.float64()}),
    "struct<prediction: array<double>>": pa.struct({"prediction": pa.list_(pa.float64())}),
    "struct<`x`: array<double>>": pa.struct({"x": pa.list_(pa.float64())}),
}


def about(head: str = "softmax", outputs: int = 3) -> Signature:
    return Signature(
        features=("x",), shapes=((4,),), dtypes=("float32",), head=head, outputs=outputs
    )


def network(outputs: int = 3) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, outputs)


def scores(of: nn.Module, rows: Any = ROWS) -> Any:
    with torch.no_grad():
        return of(torch.from_numpy(rows)).numpy()


def answered(
    model: nn.Module,
    answer: Answer,
    signature: Signature | None = None,
    rows: Any = ROWS,
    **how: Any,
) -> pa.Array:
    nulls = how.pop("nulls", "error")
    column = pa.array(list(rows), pa.list_(pa.float32()))
    return PackedApplication(PackedPredictor.of(model, signature, **how), answer, nulls).load()(
        [column]
    )


KINDS = ["prediction", "class", "probability", "raw", "topk", "all"]


@pytest.mark.parametrize("labels", [(), LABELS])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_classifiers_answer_in_the_promised_type(
    kind: str, signed: bool, labels: tuple[str, ...]
) -> None:
    answer, signature = Answer(kind, k=2, labels=labels), about() if signed else None
    promised = ARROW_TYPES[answer.spark_type(signature)]
    for rows in (ROWS, ROWS[:0]):
        assert answered(network(), answer, signature, rows).type == promised


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", ["prediction", "raw", "all"])
def test_regressions_answer_in_the_promised_type(kind: str, outputs: int) -> None:
    signature = about("identity", outputs)
    promised = ARROW_TYPES[Answer(kind).spark_type(signature)]
    for rows in (ROWS, ROWS[:0]):
        assert answered(network(outputs), Answer(kind), signature, rows).type == promised


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("signature", [about(), None], ids=["signed", "unsigned"])
def test_a_batch_of_nothing_but_nulls(kind: str, signature: Signature | None) -> None:
    answer = Answer(kind, k=2)
    column = pa.array([None, None], pa.list_(pa.float32()))
    found = PackedApplication(PackedPredictor.of(network(), signature), answer, "null").load()(
        [column]
    )
    assert found.to_pylist() == [None, None]
    assert found.type == ARROW_TYPES[answer.spark_type(signature)]


def test_answers_are_those_of_torch() -> None:
    raw = scores(network())
    share = torch.from_numpy(raw).double().softmax(1).numpy()
    for signature in (about(), None):
        one = answered(network(), Answer("all"), signature)
        np.testing.assert_allclose(one.field("raw").to_pylist(), raw, rtol=1e-6)
        np.testing.assert_allclose(one.field("probability").to_pylist(), share, rtol=1e-6)
        assert one.field("prediction").to_pylist() == raw.argmax(1).tolist()
        assert answered(network(), Answer("class"), signature).to_pylist() == raw.argmax(1).tolist()
        found = answered(network(), Answer("probability"), signature).to_pylist()
        np.testing.assert_allclose(found, share, rtol=1e-6)
        named = answered(network(), Answer("class", labels=LABELS), signature).to_pylist()
        assert named == [LABELS[i] for i in raw.argmax(1)]
    values = answered(network(), Answer(), None).to_pylist()
    np.testing.assert_allclose(values, raw, rtol=1e-6)
    assert answered(network(), Answer(), about()).to_pylist() == raw.argmax(1).tolist()


def test_topk_is_in_order() -> None:
    raw = scores(network())
    share = torch.from_numpy(raw).double().softmax(1).numpy()
    order = np.argsort(-raw, 1)[:, :2]
    found = answered(network(), Answer("topk", k=2), None).to_pylist()
    assert [[one["class"] for one in row] for row in found] == order.tolist()
    given = [[one["probability"] for one in row] for row in found]
    np.testing.assert_allclose(given, np.take_along_axis(share, order, 1), rtol=1e-6)
    named = answered(network(), Answer("topk", k=2, labels=LABELS), None).to_pylist()
    assert [[one["label"] for one in row] for row in named] == [
        [LABELS[i] for i in row] for row in order
    ]
    with pytest.raises(InputError, match=r"3 classes. Received: k=5"):
        answered(network(), Answer("topk"), None)


Pair = namedtuple("Pair", ["scores", "hidden"])


class Several(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.layer = network()

    def forward(self, x: torch.Tensor) -> Any:
        scores, hidden = self.layer(x), torch.stack([x, -x], 1)
        if self.form == "dict":
            return {"scores": scores, "hidden": hidden}
        return Pair(scores, hidden) if self.form == "named" else [scores, hidden]


@pytest.mark.parametrize(
    ("form", "keys"), [("list", (0, 1)), ("named", (0, 1)), ("dict", ("scores", "hidden"))]
)
def test_several_outputs_are_a_struct(form: str, keys: tuple[int | str, int | str]) -> None:
    answer = Answer.of({"a": keys[1], "b": keys[0]}, 5, ())
    assert answer.spark_type(None) == "struct<`a`: array<double>, `b`: array<double>>"
    for rows in (ROWS, ROWS[:0]):
        found = answered(Several(form), answer, None, rows)
        assert found.type == pa.struct({"a": pa.list_(pa.float64()), "b": pa.list_(pa.float64())})
    found = answered(Several(form), answer, None)
    np.testing.assert_allclose(found.field("b").to_pylist(), scores(network()), rtol=1e-6)
    np.testing.assert_array_equal(found.field("a").to_pylist(), np.hstack([ROWS, -ROWS]))
    first = answered(Several(form), Answer("class"), None).to_pylist()
    assert first == scores(network()).argmax(1).tolist()


@pytest.mark.parametrize(("form", "key"), [("list", 2), ("list", "hidden"), ("dict", "hiden")])
def test_outputs_that_do_not_exist(form: str, key: int | str) -> None:
    with pytest.raises(InputError, match=f"no output {key!r}"):
        answered(Several(form), Answer.of({"a": key}, 5, ()), None)
    with pytest.raises(InputError, match="no output 1"):
        answered(network(), Answer.of({"a": 1}, 5, ()), None)


@pytest.mark.parametrize("kind", ["class", "probability", "topk"])
def test_classes_of_a_regression_are_refused_before_anything_runs(kind: str) -> None:
    with pytest.raises(InputError, match="needs a classifier"):
        Answer(kind).check(about("identity", 1))


@pytest.mark.parametrize("kind", ["class", "probability", "topk", "all"])
@pytest.mark.parametrize("head", [None, "identity"])
def test_a_single_value_is_no_class(kind: str, head: str | None) -> None:
    with pytest.raises(InputError, match=r"a value for each class. This one gives 1.*sigmoid"):
        answered(network(1), Answer(kind, k=1), None, head=head)


def test_a_single_value_by_sigmoid() -> None:
    found = answered(network(1), Answer("class"), None, head="sigmoid").to_pylist()
    assert found == (scores(network(1))[:, 0] > 0).tolist()


def test_thresholds_decide() -> None:
    from dataclasses import replace

    thresholds = (0.9, 0.1, 0.5)
    share = torch.from_numpy(scores(network())).double().softmax(1).numpy()
    found = answered(network(), Answer("class"), replace(about(), thresholds=thresholds))
    assert found.to_pylist() == (share / thresholds).argmax(1).tolist()
    assert found.to_pylist() != share.argmax(1).tolist()


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Answer("class", labels=("a", "b")), "2 labels for 3 classes"),
        (Answer("topk", k=4), "3 classes. Received: k=4"),
    ],
)
def test_what_does_not_fit_the_signature(answer: Answer, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        answer.check(about())


def test_too_few_labels_without_a_signature() -> None:
    with pytest.raises(InputError, match="1 labels for 3 classes"):
        answered(network(), Answer("class", labels=("a",)), None)


@pytest.mark.parametrize("k", [0, -1, 1.5, True, "2"])
def test_k_is_a_positive_integer(k: Any) -> None:
    with pytest.raises(InputError, match="k must be a positive integer"):
        Answer.of("topk", k, ())


@pytest.mark.parametrize("answer", ["klass", "", {}, None, 3])
def test_answers_by_name(answer: Any) -> None:
    with pytest.raises(InputError, match="There is no answer"):
        Answer.of(answer, 5, ())


def test_predictors_give_several_outputs_too() -> None:
    found = Predictor(Several("dict"))(ROWS, ("hidden", "scores"))
    np.testing.assert_array_equal(found.outputs[0], np.hstack([ROWS, -ROWS]))
    np.testing.assert_allclose(found.outputs[1], scores(network()), rtol=1e-6)


@pytest.mark.parametrize("answer", ["raw", "probability", {"first": 0}])
def test_labels_are_for_what_names_classes(answer: Any) -> None:
    with pytest.raises(InputError, match="labels are for"):
        Answer.of(answer, 5, ["a", "b"])


def test_a_text_is_no_list_of_labels() -> None:
    with pytest.raises(InputError, match="labels must be a list of names"):
        Answer.of("class", 5, "ab")


@pytest.mark.parametrize(
    ("head", "kind"),
    [(None, "prediction"), ("sigmoid", "class"), ("identity", "raw"), ("sigmoids", "probability")],
)
def test_a_head_alone_tells_what_a_prediction_is(head: str | None, kind: str) -> None:
    assert Answer().for_head(head).kind == kind
