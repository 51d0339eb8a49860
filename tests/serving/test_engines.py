"""Other engines: the same answers for any number of rows, taken if clearly faster."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from farandole.artifact import Artifact, Head, Signature, to_program
from farandole.errors import InputError
from farandole.inference import Predictor
from farandole.networks import CNN
from farandole.serving import Serving, app, engines
from farandole.serving.agreement import Expected, equal_answers
from farandole.serving.engines import choose_engine, fastest
from farandole.serving.model import Model
from farandole.serving.model_files import ModelFiles
from farandole.serving.pace import Times

ABOUT = Signature(
    features=("x",), shapes=((8,),), dtypes=("float32",), head="softmax", outputs=3
)  # fmt: skip


class TwoHeads(nn.Module):
    """Takes columns by name, gives outputs by name, and not in the order of the signature."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.size, self.kind = nn.Linear(6, 1), nn.Linear(6, 3)

    def forward(self, rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        both = torch.cat([self.words(rows["word"]), rows["place"]], 1)
        return {"size": self.size(both), "kind": self.kind(both)}


class DependsOnValues(nn.Module):
    """What no exported program can be made of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :3] if float(x.sum()) > 0 else x[:, 3:6]


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All engines are tried, and every other engine is faster than the network itself."""
    monkeypatch.setattr(engines, "WORTH", Times(0.0, 0.0))
    order = {"eager": 4.0, "exported": 3.0, "onnx": 1.0}
    monkeypatch.setattr(
        engines, "measure", lambda models, *_: {n: Times(order[n], order[n]) for n in models}
    )


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
    return nn.Sequential(*layers)


def model_of(network: nn.Module, signature: Signature = ABOUT) -> Model:
    return Model("net", "1", Predictor(network, signature))


def test_the_fastest_has_to_be_clearly_faster_and_slower_at_nothing() -> None:
    own = Times(1.0, 10.0)
    assert fastest("eager", {"eager": own}) == "eager"
    assert fastest("eager", {"eager": own, "onnx": Times(0.86, 8.6)}) == "eager"
    assert fastest("eager", {"eager": own, "onnx": Times(0.84, 9.9)}) == "onnx"
    assert fastest("eager", {"eager": own, "onnx": Times(0.1, 10.1)}) == "eager"
    rivals = {"exported": Times(0.5, 5.0), "onnx": Times(0.4, 5.0)}
    assert fastest("eager", {"eager": own, **rivals}) == "onnx"


@pytest.mark.parametrize("engine", ["exported", "onnx"])
def test_an_engine_gives_the_networks_answers_for_any_number_of_rows(engine: str) -> None:
    network = mlp().eval()
    served = choose_engine(model_of(network), engine, max_batch=4)
    assert served.metadata["platform"] == f"farandole_{engine}"
    for rows in (1, 2, 3, 4, 5, 100, 5000):
        x = torch.randn(rows, 8)
        wanted = network(x).detach().numpy()
        np.testing.assert_allclose(served.answer([x.numpy()]).raw, wanted, 1e-4, 1e-5)


@pytest.mark.usefixtures("untimed")
def test_columns_and_outputs_by_name_stay_what_they_are() -> None:
    torch.manual_seed(0)
    heads = [
        Head(name="kind", output="kind", kind="softmax", outputs=3),
        Head(name="size", output="size", kind="identity", outputs=1),
    ]
    about = Signature(
        features=("word", "place"), shapes=((), (2,)), dtypes=("int64", "float32"), head="softmax",
        outputs=3, by_name=True,
    ).with_heads(heads)  # fmt: skip
    network = TwoHeads().eval()
    served = choose_engine(model_of(network, about), "auto", max_batch=4)
    assert served.engine == "onnx"
    word, place = np.array([0, 4, 2]), np.ones((3, 2), np.float32)
    found = served.answer([word, place])
    wanted = network({"word": torch.tensor(word), "place": torch.tensor(place)})
    np.testing.assert_allclose(found["kind"].raw, wanted["kind"].detach(), 1e-4, 1e-6)
    np.testing.assert_allclose(found["size"].raw, wanted["size"].detach(), 1e-4, 1e-6)


def test_a_network_that_is_quick_already_is_not_exported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engines, "measure", lambda models, *_: {"eager": Times(0.4e-3, 1.5e-3)})
    monkeypatch.setattr(engines, "to_program", lambda *_: pytest.fail("exported"))
    model = model_of(mlp())
    with caplog.at_level(logging.INFO, "farandole.serving.engines"):
        assert choose_engine(model, "auto", 4) is model
    assert "version 1: eager (eager 0.40 ms a row, 1.50 ms a full batch)" in caplog.text


@pytest.mark.usefixtures("untimed")
def test_an_engine_that_disagrees_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(1)
    other = nn.Sequential(nn.Linear(8, 3)).eval()
    monkeypatch.setattr(engines, "to_program", lambda _, about: to_program(other, about))
    with caplog.at_level(logging.INFO, "farandole.serving.engines"):
        assert choose_engine(model_of(mlp()), "auto", 4).engine == "eager"
    for engine in ("exported", "onnx"):
        assert f"not by {engine}. It gives other answers" in caplog.text
    with pytest.raises(
        InputError, match="'net', version 1, can't have the engine 'onnx': It gives"
    ):
        choose_engine(model_of(mlp()), "onnx", 4)


@pytest.mark.usefixtures("untimed")
def test_what_makes_a_number_out_of_nan_is_not_chosen_but_can_be_asked_for() -> None:
    torch.manual_seed(0)
    pooled = nn.Sequential(nn.Unflatten(1, (1, 8)), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(4, 3))
    assert choose_engine(model_of(pooled), "auto", 4).engine == "exported"
    assert choose_engine(model_of(pooled), "onnx", 4).engine == "onnx"


@pytest.mark.usefixtures("untimed")
def test_what_has_one_engine_keeps_it() -> None:
    photos = Signature(
        features=("image",), shapes=((None, None, 3),), dtypes=("uint8",), head="softmax", outputs=2
    )
    for network, about, why in (
        (CNN(3, 2, filters=(4,)), photos, "rows differ in size"),
        (DependsOnValues(), ABOUT, "can't have the engine"),
    ):
        assert choose_engine(model_of(network, about), "auto", 4).engine == "eager"
        with pytest.raises(InputError, match=why):
            choose_engine(model_of(network, about), "onnx", 4)


def test_large_networks_are_not_exported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engines, "to_program", lambda *_: pytest.fail("exported"))
    for bound in ("LARGEST", "MOST_MODULES"):
        with monkeypatch.context() as bounded, caplog.at_level(logging.INFO):
            caplog.clear()
            bounded.setattr(engines, bound, 5)
            assert choose_engine(model_of(mlp()), "auto", 4).engine == "eager"
        assert "too long to export" in caplog.text


@pytest.mark.usefixtures("untimed")
def test_a_saved_program_is_one_and_may_become_onnx(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mul(self.inner(x), 2)

    network = Own().eval()
    Artifact(network, ABOUT).save(tmp_path / "net")
    x = torch.randn(3, 8)
    for wanted, found in (("eager", "exported"), ("exported", "exported"), ("auto", "onnx")):
        served = ModelFiles(engine=wanted, max_batch=4).load("net", "1", tmp_path / "net")
        assert served.metadata["platform"] == f"farandole_{found}"
        raw = served.answer([x.numpy()]).raw
        np.testing.assert_allclose(raw, network(x).detach().numpy(), 1e-4, 1e-5)


def test_the_option_reaches_models_and_workers(tmp_path: Path) -> None:
    Artifact(mlp(), ABOUT).save(tmp_path / "net")
    told = Serving(models=(str(tmp_path / "net"),), engine="exported").to_json()
    served = Serving.from_json(told).app()
    served.repository.load_all()
    assert served.repository.find("net").model.metadata["platform"] == "farandole_exported"
    with pytest.raises(InputError, match="engine must be one of"):
        Serving(models=("net",), engine="tensorrt").check()


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match="engine must be one of auto, eager, exported"):
        app(engine="tensorrt")


def test_whole_numbers_stay_in_the_table_of_an_embedding() -> None:
    about = Signature(
        features=("ids",), shapes=((3,),), dtypes=("int64",), head="identity", outputs=1
    )
    for rows, highest in ((50, 1), (300, 100), (1, 0)):
        network = nn.Sequential(nn.Embedding(rows, 4), nn.Flatten(), nn.Linear(12, 1))
        batch = Expected.of(model_of(network, about), 64).full_batch[0]
        assert isinstance(batch, np.ndarray)
        assert highest <= batch.max() < rows


def test_equal_means_all_numbers_their_shape_and_nan() -> None:
    one = np.array([[0.0, 1.0, np.nan]])
    assert equal_answers([one], [one], 1e-4)
    for other in (one[:, :2], one + 0.01, np.nan_to_num(one), np.full((1, 3), np.nan)):
        assert not equal_answers([other], [one], 1e-4)
    assert not equal_answers([], [one], 1e-4)


@pytest.mark.exhaustive
def test_compiled_gives_the_same_answers() -> None:
    network = mlp().eval()
    served = choose_engine(model_of(network), "compiled", max_batch=4)
    assert served.engine == "compiled"
    x = torch.randn(7, 8)
    wanted = network(x).detach().numpy()
    np.testing.assert_allclose(served.answer([x.numpy()]).raw, wanted, 1e-4, 1e-5)
