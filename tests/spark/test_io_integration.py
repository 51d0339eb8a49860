"""Saving and loading estimators and models."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from tests.spark.samples import frame, small_network
from torch import nn

from farandole.artifact import Artifact, Signature, write_sums
from farandole.errors import ArtifactError
from farandole.spark import TorchEstimator, TorchModel, allow_pickle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

HISTORY = ({"epoch": 1.0, "train_loss": 0.5}, {"epoch": 2.0, "train_loss": 0.25})


def model_of(network: nn.Module) -> TorchModel:
    signature = Signature(
        features=("features",), shapes=((4,),), dtypes=("float32",), head="softmax", outputs=3
    )
    return TorchModel(Artifact(network.eval(), signature, HISTORY))


def scores(model: TorchModel, data: DataFrame) -> np.ndarray[Any, Any]:
    rows = model.transform(data).orderBy("id").collect()
    return np.stack([row.rawPrediction.toArray() for row in rows])


class Squared(nn.Module):
    """More than a sequence of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x * x) + self.layer(x)
        return scores


class Undecided(Squared):
    """Nothing that torch.export could follow: what it does depends on the values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if float(x.sum()) > 0 else super().forward(-x)


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(self.path),))


def test_a_model_survives(spark: SparkSession, tmp_path: Path) -> None:
    model = model_of(small_network()).setPredictionCol("guess").setFeaturesCol("features")
    model.write().save(str(tmp_path / "model"))
    names = {p.relative_to(tmp_path / "model").as_posix() for p in tmp_path.rglob("*.*")}
    assert {"network/network.json", "network/weights.safetensors", "network/history.json"} <= names
    assert not any(name.endswith((".pickle", ".pkl", ".pt", ".bin")) for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]

    loaded = TorchModel.load(str(tmp_path / "model"))
    assert loaded.uid == model.uid
    assert loaded.getPredictionCol() == "guess"
    assert loaded.signature == model.signature
    assert loaded.steps is None
    pd.testing.assert_frame_equal(loaded.history, model.history)
    for mine, other in zip(loaded.network.parameters(), model.network.parameters(), strict=True):
        assert torch.equal(mine, other)
    weights = load_file(tmp_path / "model" / "network" / "weights.safetensors")
    assert torch.equal(weights["0.weight"], model.network.state_dict()["0.weight"])
    data = frame(spark)
    np.testing.assert_array_equal(scores(loaded, data), scores(model, data))


def test_paths(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(small_network())
    odd = tmp_path / "a b#c%20d"
    model.save(f"file:{odd}/one")
    model.save(f"file://{odd}/two")
    assert (odd / "one" / "network" / "weights.safetensors").is_file()
    assert TorchModel.load(str(odd / "one")).uid == TorchModel.load(f"file:{odd}/two").uid
    monkeypatch.chdir(tmp_path)  # Java's own working directory doesn't follow
    model.save("relative")
    assert (tmp_path / "relative" / "metadata").is_dir()
    assert TorchModel.load("relative").uid == model.uid


def test_an_existing_path_is_refused_unless_overwritten(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "model")
    old, new = model_of(small_network()), model_of(small_network(seed=5))
    old.write().save(path)
    with pytest.raises(ArtifactError, match=r"exists\. .*overwrite"):
        new.write().save(path)
    with pytest.raises(ArtifactError, match="exists"):
        TorchEstimator().write().save(path)
    assert TorchModel.load(path).uid == old.uid
    new.write().overwrite().save(path)
    assert TorchModel.load(path).uid == new.uid
    assert [found.name for found in tmp_path.iterdir()] == ["model"]


def test_a_failed_save_leaves_the_old_model(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    old = model_of(small_network())
    old.write().save(path)
    with pytest.raises(ArtifactError, match="allow"):
        model_of(Undecided()).write().overwrite().save(path)
    assert TorchModel.load(path).uid == old.uid
    with pytest.raises(ArtifactError, match="allow"):
        model_of(Undecided()).write().save(str(tmp_path / "other"))
    assert [found.name for found in tmp_path.iterdir()] == ["model"]


def test_a_move_that_fails_leaves_the_old_model(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    old = model_of(small_network())
    old.write().save(str(path))
    rename = os.rename

    def refuse(source: Any, target: Any, **more: Any) -> None:
        if Path(target) == path and Path(source).name == "new":
            raise OSError("no more room")
        rename(source, target, **more)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="no more room"):
        model_of(small_network(seed=5)).write().overwrite().save(str(path))
    assert TorchModel.load(str(path)).uid == old.uid
    assert [found.name for found in tmp_path.iterdir()] == ["model"]


def test_metadata_is_written_and_read_here_and_in_sparks_own_layout(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors and Connect servers have other disks: what is local must not pass through them."""
    from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter
    from pyspark.sql import SparkSession as Session

    stages: list[Any] = [
        model_of(small_network()).setPredictionCol("guess"),
        TorchEstimator(network=small_network(), epochs=7, metrics=["accuracy"]),
    ]
    with monkeypatch.context() as patched:
        for name in ("createDataFrame", "read"):
            patched.setattr(Session, name, None)
        for stage in stages:
            path = str(tmp_path / type(stage).__name__)
            stage.write().save(path)
            assert type(stage).load(path).uid == stage.uid
    model = stages[0]
    for stage in stages:
        path = tmp_path / type(stage).__name__
        names = {file.name for file in (path / "metadata").iterdir()}
        assert names == {"part-00000", "_SUCCESS"}
        found = DefaultParamsReader.loadMetadata(str(path), spark)
        assert found["class"] == f"farandole.spark.estimator.{type(stage).__name__}"
        assert found["uid"] == stage.uid
    assert found["paramMap"] == {"epochs": 7, "metrics": ["accuracy"]}

    # Folders whose metadata Spark itself wrote.
    shutil.rmtree(tmp_path / "TorchModel" / "metadata")
    DefaultParamsWriter.saveMetadata(model, str(tmp_path / "TorchModel"), spark)
    assert TorchModel.load(str(tmp_path / "TorchModel")).getPredictionCol() == "guess"
    with pytest.raises(ArtifactError, match=r"holds a .*TorchModel, and not a .*TorchEstimator"):
        TorchEstimator.load(str(tmp_path / "TorchModel"))


def test_a_folder_without_metadata_was_not_finished(spark: SparkSession, tmp_path: Path) -> None:
    model_of(small_network()).write().save(str(tmp_path / "model"))
    (tmp_path / "model" / "metadata").rename(tmp_path / "elsewhere")
    for kind in (TorchModel, TorchEstimator):
        with pytest.raises(ArtifactError, match=f"holds no saved {kind.__name__}"):
            kind.load(str(tmp_path / "model"))


def test_a_network_of_its_own_class_is_saved_as_a_program(
    spark: SparkSession, tmp_path: Path
) -> None:
    model, data = model_of(Squared()), frame(spark)
    model.write().save(str(tmp_path / "model"))
    about = json.loads((tmp_path / "model" / "network" / "network.json").read_text())
    assert about["kind"] == "exported"
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert not isinstance(loaded.network, Squared)
    np.testing.assert_allclose(scores(loaded, data), scores(model, data), rtol=0, atol=1e-6)


def test_a_pickled_network_needs_the_word_twice(spark: SparkSession, tmp_path: Path) -> None:
    network, path = Undecided(), str(tmp_path / "model")
    network.trap = Trap(str(tmp_path / "sprung"))  # type: ignore[assignment]
    model_of(network).setAllowPickle(True).write().save(path)
    with pytest.raises(ArtifactError, match="runs code"):
        TorchModel.load(path)
    assert not (tmp_path / "sprung").exists()
    with allow_pickle():
        loaded = TorchModel.load(path)
    assert (tmp_path / "sprung").exists()
    assert isinstance(loaded.network, Undecided)
    with pytest.raises(ArtifactError, match="runs code"):
        TorchModel.load(path)


def test_an_estimator_survives(spark: SparkSession, tmp_path: Path) -> None:
    one = TorchEstimator(
        network=small_network(),
        initialWeights=small_network(seed=3),
        epochs=7,
        learningRate=0.25,
        optimizerOptions={"betas": (0.8, 0.9)},
        classWeights=(1.0, 2.0, 3.0),
        metrics=["accuracy"],
        labelCols=["label"],
        validationFraction=0.5,
    )
    one.write().save(str(tmp_path / "one"))
    loaded = TorchEstimator.load(str(tmp_path / "one"))
    assert loaded.uid == one.uid
    for param in one.params:
        assert loaded.isSet(param.name) == one.isSet(param)
        if param.name not in ("network", "initialWeights", "optimizerOptions", "classWeights"):
            assert loaded.value_of(param.name) == one.value_of(param.name)
    assert loaded.getClassWeights() == [1.0, 2.0, 3.0]
    assert loaded.getOptimizerOptions() == {"betas": [0.8, 0.9]}
    for name in ("network", "initialWeights"):
        found, given = loaded.value_of(name), one.value_of(name)
        assert repr(found) == repr(given)
        assert torch.equal(found[0].weight, given[0].weight)
    assert loaded.getNetwork().training
    model = loaded.copy({loaded.epochs: 1, loaded.progress: False}).fit(frame(spark))
    assert len(model.history) == 1


def test_what_json_cannot_hold_is_pickled_only_on_request(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "one")
    one = TorchEstimator(network=Squared(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.Adam)
    with pytest.raises(ArtifactError, match=r"can't describe .*network.*allowPickle=True"):
        one.write().save(path)
    assert not Path(path).exists()
    one.setAllowPickle(True).write().save(path)
    with pytest.raises(ArtifactError, match="allow_pickle"):
        TorchEstimator.load(path)
    with allow_pickle():
        loaded = TorchEstimator.load(path)
    assert isinstance(loaded.getNetwork(), Squared)
    assert loaded.getOptimizer() is torch.optim.Adam


def test_a_description_cannot_name_anything_but_layers(spark: SparkSession, tmp_path: Path) -> None:
    model_of(small_network()).write().save(str(tmp_path / "model"))
    about = tmp_path / "model" / "network" / "network.json"
    text = about.read_text()
    for name in ("os.system", "Module.__init__", "functional", "init"):
        about.write_text(text.replace('"Tanh"', json.dumps(name)))
        write_sums(about.parent)
        with pytest.raises(ArtifactError, match=r"not a layer of torch\.nn"):
            TorchModel.load(str(tmp_path / "model"))


def metadata_of(path: Path) -> Path:
    [found] = path.glob("metadata/part-*")
    return found


@pytest.mark.attack(
    "a saved estimator that says which file to overwrite", "left out, with a warning"
)
def test_a_saved_estimator_does_not_say_where_to_write(spark: SparkSession, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    one = TorchEstimator(network=small_network(), epochs=1, progress=False, trace=str(precious))
    one.write().save(str(tmp_path / "one"))
    part = metadata_of(tmp_path / "one")
    assert "precious" not in part.read_text()
    for params in ("paramMap", "defaultParamMap"):
        metadata = json.loads(part.read_text())
        metadata[params]["trace"] = str(precious)
        part.write_text(json.dumps(metadata))
        with pytest.warns(UserWarning, match="says trace, a place to write to"):
            loaded = TorchEstimator.load(str(tmp_path / "one"))
        assert loaded.getTrace() is None
    loaded.fit(frame(spark))
    assert precious.read_text() == "mine"


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "3",
        "{}",
        '{"class": 3}',
        "[" * 100_000,
        "KIND, ",
        'KIND, "uid": 3, "paramMap": 4',
        'KIND, "uid": "a", "paramMap": {"nonsense": 3}',
        'KIND, "uid": "a", "paramMap": {"epochs": []}',
    ],
)
def test_damaged_metadata(content: str, spark: SparkSession, tmp_path: Path) -> None:
    TorchEstimator(network=small_network()).write().save(str(tmp_path / "one"))
    part = metadata_of(tmp_path / "one")
    kind = json.dumps(json.loads(part.read_text())["class"])
    start = '{"sparkVersion": "4.0.0", "timestamp": 1, "defaultParamMap": {}, "class": '
    made = content.replace("KIND", start + kind) + ("}" if "KIND" in content else "")
    part.write_text(made)
    with pytest.raises(ArtifactError, match="one"):
        TorchEstimator.load(str(tmp_path / "one"))


@pytest.mark.attack("a pipe in the place of a JSON file", "ArtifactError, at once")
def test_a_pipe_in_place_of_metadata(spark: SparkSession, tmp_path: Path) -> None:
    TorchEstimator(network=small_network()).write().save(str(tmp_path / "one"))
    part = metadata_of(tmp_path / "one")
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(ArtifactError, match="a pipe"):
        TorchEstimator.load(str(tmp_path / "one"))


def test_a_flipped_bit_in_an_estimators_network(spark: SparkSession, tmp_path: Path) -> None:
    TorchEstimator(network=small_network()).write().save(str(tmp_path / "one"))
    [weights] = tmp_path.glob("one/modules/*/weights.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ArtifactError, match="not what was saved"):
        TorchEstimator.load(str(tmp_path / "one"))
