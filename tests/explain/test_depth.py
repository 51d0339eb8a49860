from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from farandole.errors import MissingPackage
from farandole.explain import QUICK, VARIANTS, DepthStudy, explain_depth, study_depth
from farandole.explain.depth_study import gradient_norms, load_digits
from farandole.explain.depth_variants import linear_layers
from farandole.networks import MLP

REMEDIES = ["careful weights", "residual", "batch norm"]
SHALLOW, DEEP = QUICK.depths


@pytest.fixture(scope="module")
def study() -> DepthStudy:
    return study_depth(QUICK)


@pytest.fixture(scope="module")
def digits() -> pa.Table:
    return load_digits()


def seen(study: DepthStudy, variant: str, depth: int, what: str) -> float:
    table = study.summary.set_index(["variant", "depth"])
    return float(table.loc[(variant, depth), what])


def norms(variant: str, depth: int, digits: pa.Table) -> list[float]:
    given = VARIANTS[variant]
    return gradient_norms(given.build([64, *[32] * depth, 10], 0), digits, given.clip_norm)


def test_gradient_norms_are_those_of_backpropagation_by_hand(digits: pa.Table) -> None:
    network = VARIANTS["sigmoid"].build([64, 32, 32, 10], seed=3)
    weights = [layer.weight.detach().double().numpy() for layer in linear_layers(network)]
    rows = np.array(digits["features"].to_pylist()[:256])
    labels = digits["label"].to_numpy()[:256]
    inputs = [rows]
    for weight in weights[:-1]:
        inputs.append(1 / (1 + np.exp(-inputs[-1] @ weight.T)))
    scores = np.exp(inputs[-1] @ weights[-1].T)
    error = (scores / scores.sum(1, keepdims=True) - np.eye(10)[labels]) / 256
    wanted = []
    for number in (2, 1, 0):
        wanted.insert(0, np.linalg.norm(error.T @ inputs[number]))
        error = error @ weights[number] * inputs[number] * (1 - inputs[number])
    np.testing.assert_allclose(gradient_norms(network, digits), wanted, rtol=1e-6)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_plain_sigmoids_vanish_with_depth(digits: pa.Table) -> None:
    first = [norms("sigmoid", depth, digits)[0] for depth in (2, 5, 10, 20, 50)]
    assert all(deeper < 1e-2 * shallower for shallower, deeper in pairwise(first))
    by_layer = norms("sigmoid", 20, digits)
    assert by_layer[0] / by_layer[-1] < 1e-15
    assert by_layer == sorted(by_layer)


def test_glorots_weights_alone_do_not_save_a_sigmoid(digits: pa.Table) -> None:
    by_layer = gradient_norms(MLP([64, *[32] * 20, 10], "sigmoid", seed=0), digits)
    assert by_layer[0] / by_layer[-1] < 1e-10


@pytest.mark.parametrize("remedy", REMEDIES)
@pytest.mark.parametrize("depth", [20, 50])
def test_each_remedy_keeps_the_gradient_alive(remedy: str, depth: int, digits: pa.Table) -> None:
    helped = norms(remedy, depth, digits)
    assert helped[0] > 1e10 * norms("sigmoid", depth, digits)[0]
    assert 1e-3 < helped[0] / helped[-1] < 10


@pytest.mark.parametrize("remedy", REMEDIES)
def test_each_remedy_lets_a_deep_network_learn(remedy: str, study: DepthStudy) -> None:
    assert seen(study, "sigmoid", DEEP, "accuracy") < 0.15  # guessing one of ten
    assert seen(study, remedy, DEEP, "accuracy") > 0.25


def test_careful_sigmoids_begin_as_a_network_of_tanh() -> None:
    layers = [64, *[32] * 20, 10]
    network = VARIANTS["careful weights"].build(layers, seed=5).double()
    twin = MLP(layers, "tanh", seed=5).double()
    rows = torch.randn(8, 64, dtype=torch.float64)
    torch.testing.assert_close(network(rows), twin(rows), rtol=1e-4, atol=1e-5)


def test_large_weights_explode_and_he_s_do_not(study: DepthStudy, digits: pa.Table) -> None:
    sizes = [max(norms("large weights", depth, digits)) for depth in (2, 5, 10, 20, 50)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 1e8 * sizes[0]
    assert max(norms("He's weights", 50, digits)) < 1
    assert math.isnan(seen(study, "large weights", DEEP, "loss"))
    assert seen(study, "He's weights", DEEP, "loss") < math.log(10)


def test_clipping_lets_training_survive_but_turns_no_gradient(
    study: DepthStudy, digits: pa.Table
) -> None:
    plain, clipped = norms("large weights", 20, digits), norms("clipped", 20, digits)
    assert math.hypot(*clipped) <= 1
    np.testing.assert_allclose(np.divide(plain, clipped), plain[0] / clipped[0])
    assert math.isfinite(seen(study, "clipped", DEEP, "loss"))
    assert (
        seen(study, "clipped", DEEP, "accuracy") < 0.25
    )  # it survives, and learns next to nothing


def test_the_study_has_a_row_a_layer_and_a_row_a_network(study: DepthStudy) -> None:
    layers = study.gradients.groupby(["variant", "depth"])["layer"].max()
    assert len(layers) == len(study.summary) == len(VARIANTS) * 2
    assert set(layers.loc[:, DEEP]) == {DEEP + 1}
    assert study.gradients["norm"].gt(0).all()


def test_depth_is_told_printed_and_drawn(
    tmp_path: Path,
    study: DepthStudy,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def studied(plan: object, tell: object) -> DepthStudy:
        assert plan is QUICK
        assert callable(tell)
        tell("1/7  training")
        return study

    monkeypatch.setattr("farandole.explain.depth.study_depth", studied)
    monkeypatch.setenv("COLUMNS", "120")
    explain_depth(tmp_path / "depth.png", QUICK)
    assert (tmp_path / "depth.png").read_bytes().startswith(b"\x89PNG")
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("1/7 training")
    assert "│ NaN │ – │" in printed
    assert all(f"{name}: {variant.shows}" in printed for name, variant in VARIANTS.items())


@pytest.mark.parametrize(
    ("module", "words"), [("matplotlib.figure", r"farandole\[plot\]"), ("sklearn", r"\[demo\]")]
)
def test_a_missing_package_is_told_before_training(
    module: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("farandole.explain.depth_study.train", None)
    with pytest.raises(MissingPackage, match=words):
        explain_depth(tmp_path / "depth.png")
