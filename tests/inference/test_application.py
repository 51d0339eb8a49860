"""Predictions as Arrow columns, and networks on their way to workers; without Spark."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.errors import InputError
from farandole.inference import packed_predictor as packing
from farandole.inference.answer import Answer
from farandole.inference.application import PackedApplication
from farandole.inference.packed_predictor import PackedPredictor
from farandole.inference.predictor import Predictor


def signature(head: str = "softmax", outputs: int = 3) -> Signature:
    return Signature(
        features=("x",), shapes=((4,),), dtypes=("float32",), head=head, outputs=outputs
    )


@pytest.mark.parametrize(("head", "outputs"), [("softmax", 3), ("identity", 1), ("identity", 2)])
def test_types_do_not_depend_on_the_number_of_rows(head: str, outputs: int) -> None:
    about = signature(head, outputs)
    predictor = Predictor(nn.Linear(4, outputs), about)
    full, empty = (
        Answer("all").to_arrow(predictor.predict_columns([np.zeros((rows, 4), np.float32)]))
        for rows in (5, 0)
    )
    assert (len(full), len(empty)) == (5, 0)
    assert full.type == empty.type
    names = ["raw", "probability", "prediction"] if head == "softmax" else ["prediction"]
    assert [field.name for field in full.type] == names


def test_a_network_is_unpacked_once_and_a_few_are_kept() -> None:
    networks = [nn.Linear(4, 3) for _ in range(6)]
    packed = [PackedPredictor.of(network, signature()) for network in networks]
    assert len({one.digest for one in packed}) == 6
    first = packed[0].load()
    assert packed[0].load() is first
    assert PackedPredictor.of(networks[0], signature()).load() is first
    for one in packed[1:]:
        one.load()
    assert len(packing._loaded) == 4
    assert packed[0].load() is not first
    assert torch.equal(packed[5].load().network.weight, networks[5].weight)


def test_answers_are_those_of_the_network() -> None:
    network = nn.Linear(4, 3)
    x = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    column = pa.array(list(x), pa.list_(pa.float32()))
    found = PackedApplication(PackedPredictor.of(network, signature()), Answer("all")).load()(
        [column]
    )
    with torch.no_grad():
        scores = network(torch.tensor(x))
    raw = np.stack(found.field("raw").to_pylist())
    np.testing.assert_allclose(raw, scores, atol=1e-6)
    np.testing.assert_array_equal(found.field("prediction").to_numpy(), scores.argmax(1))


def test_a_packed_application_knows_what_it_is_to_compute_on() -> None:
    packed = PackedApplication.of(nn.Linear(2, 1), device="cpu")
    assert pickle.loads(pickle.dumps(packed)).device == "cpu"
    with pytest.raises(InputError, match="device='gpu'"):
        PackedApplication.of(nn.Linear(2, 1), device="gpu")
