"""Keras models as artifacts and files: the same answers, and Keras models again."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import farandole
from farandole.artifact import Artifact, Program, load_network, write_sums
from farandole.errors import ArtifactError, InputError
from farandole.keras_models import KerasNetwork, require_torch_backend

keras = require_torch_backend()
L = keras.layers


def image_model() -> Any:
    """Convolution, batch normalisation, arithmetic, a seeded dropout, adapted numbers."""
    scale = L.Normalization(axis=-1)
    scale.adapt(np.random.default_rng(0).normal(5, 2, (20, 8, 8, 3)).astype("float32"))
    image = keras.Input((8, 8, 3), name="image")
    x = L.Conv2D(4, 3, activation="relu", name="conv")(scale(image))
    x = L.BatchNormalization(name="norm")(x)
    x = keras.ops.mean(x, axis=(1, 2)) + 1.0
    x = L.Dropout(0.5, seed=3)(x)
    model = keras.Model(image, L.Dense(3, activation="softmax", name="head")(x))
    for variable in model.variables:
        if "moving" in variable.path:
            variable.assign(np.full(variable.shape, 0.7, "float32"))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def two_inputs() -> Any:
    left, right = keras.Input((4,), name="left"), keras.Input((3,), name="right")
    x = L.Dense(5, activation="tanh")(L.Concatenate()([left, right]))
    outputs = {"y": L.Dense(1, name="y")(x), "z": L.Dense(2, name="z")(x)}
    return keras.Model({"left": left, "right": right}, outputs)


def sequence_model() -> Any:
    layers = [L.Embedding(20, 6), L.Bidirectional(L.LSTM(5)), L.Dense(2, kernel_regularizer="l2")]
    return keras.Sequential([keras.Input((7,), dtype="int32"), *layers])


class OwnModel(keras.Model):  # type: ignore[misc]
    """Subclassed: its config doesn't tell what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = L.Dense(4, activation="gelu"), L.Dense(2)

    def call(self, x: Any) -> Any:
        return self.last(self.first(x))


def rows(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(size=shape).astype("float32")


def test_a_model_is_the_same_keras_model_again(tmp_path: Path) -> None:
    model, images = image_model(), rows(np.random.default_rng(1), 5, 8, 8, 3)
    expected = model.predict(images, verbose=0)

    farandole.save(model, tmp_path / "net", {"image": images})
    found = farandole.load(tmp_path / "net")

    about = json.loads((tmp_path / "net" / "network.json").read_text())
    assert about["kind"] == "keras"
    assert not list((tmp_path / "net").glob("*.pickle"))
    assert found.signature is not None
    assert found.signature.shapes == ((8, 8, 3),)  # channels last, as Keras has them
    assert type(found.network) is type(model)
    assert np.array_equal(found({"image": images}).probability, expected.astype("float64"))
    again: Any = found.network
    assert np.array_equal(again.predict(images, verbose=0), expected)
    assert [one.name for one in again.layers] == [one.name for one in model.layers]
    assert again.evaluate(images, np.zeros(5), verbose=0) == pytest.approx(
        model.evaluate(images, np.zeros(5), verbose=0)
    )
    again.fit(images, np.zeros(5), verbose=0)  # its parameters learn, its statistics don't
    assert sum(one.requires_grad for one in again.parameters()) >= 6


def test_sequences_and_several_inputs(tmp_path: Path) -> None:
    model, tokens = sequence_model(), np.random.default_rng(2).integers(0, 20, (4, 7))
    farandole.save(model, tmp_path / "sequence", {"tokens": tokens}, head="identity")
    found = farandole.load(tmp_path / "sequence")({"tokens": tokens})
    assert np.allclose(found.raw, model.predict(tokens, verbose=0), atol=1e-6)

    model, rng = two_inputs(), np.random.default_rng(3)
    columns = {"right": rows(rng, 4, 3), "left": rows(rng, 4, 4)}  # not in the model's order
    farandole.save(model, tmp_path / "two", columns, head="identity")
    predictor = farandole.load(tmp_path / "two")
    expected = model.predict({name: columns[name] for name in ("left", "right")}, verbose=0)
    assert np.allclose(predictor(columns, ["z"]).raw, expected["z"], atol=1e-6)


def test_a_model_of_ones_own_is_a_program_or_a_pickle(tmp_path: Path) -> None:
    model, given = OwnModel(), rows(np.random.default_rng(4), 5, 3)
    expected = model(given).detach().numpy()

    farandole.save(model, tmp_path / "program", {"x": given}, head="identity")
    found = farandole.load(tmp_path / "program")
    assert isinstance(found.network, Program)
    assert np.allclose(found({"x": given}).raw, expected, atol=1e-6)
    fresh = OwnModel()
    fresh(np.zeros((1, 3)))
    assert np.allclose(
        np.asarray(Artifact.load(tmp_path / "program", network=fresh).network(given).detach()),
        expected,
        atol=1e-6,
    )

    lambdas = keras.Sequential([keras.Input((3,)), L.Lambda(lambda x: 2 * x), L.Dense(2)])
    farandole.save(lambdas, tmp_path / "lambda", {"x": given}, allow_pickle=True)
    with pytest.raises(ArtifactError, match="allow_pickle=True"):
        farandole.load(tmp_path / "lambda")
    again = farandole.load(tmp_path / "lambda", allow_pickle=True).network
    assert np.allclose(again(given).detach(), lambdas(given).detach(), atol=1e-6)


@pytest.mark.attack("a saved Keras model whose config was exchanged", "ArtifactError")
def test_a_folder_with_a_hostile_config_is_refused(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((3,)), L.Dense(2)])
    farandole.save(model, tmp_path / "net", {"x": np.zeros((1, 3), "float32")})
    file = tmp_path / "net" / "network.json"
    about = json.loads(file.read_text())
    layer = about["network"]["model"]["config"]["layers"][-1]

    def load_with(**changes: Any) -> None:
        changed = json.loads(json.dumps(about))
        changed["network"]["model"]["config"]["layers"][-1] = {**layer, **changes}
        file.write_text(json.dumps(changed))
        (file.parent / "sums.json").unlink()
        write_sums(file.parent)
        farandole.load(tmp_path / "net")

    with pytest.raises(ArtifactError, match=r"'os\.system', which is not Keras's"):
        load_with(module="os", class_name="system")
    with pytest.raises(ArtifactError, match="not those of the Keras model"):
        load_with(config={**layer["config"], "units": 10**9})  # 12 GB, if it were built
    with pytest.raises(ArtifactError, match="can't be made"):
        load_with(config={"units": "many"})


def test_a_keras_file_is_read(tmp_path: Path) -> None:
    model, images = image_model(), rows(np.random.default_rng(5), 5, 8, 8, 3)
    model.save(tmp_path / "net.keras")
    found = load_network(tmp_path / "net.keras").network
    assert isinstance(found, KerasNetwork)
    with torch.no_grad():
        answers = found(torch.from_numpy(images)).numpy()
    assert np.array_equal(answers, model.predict(images, verbose=0))
    assert found.model.compiled


def exchanged(source: Path, target: Path, config: Any) -> Path:
    """A .keras file with another config."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, json.dumps(config) if name == "config.json" else old.read(name))
    return target


@pytest.mark.attack("a .keras file with code, or with a config that asks for memory", "refused")
def test_a_hostile_keras_file_is_refused(tmp_path: Path) -> None:
    ran, name = tmp_path / "ran", str(tmp_path / "ran")
    layers = [L.Lambda(lambda x: (open(name, "w").close(), x)[1], output_shape=(3,)), L.Dense(2)]
    lambdas = keras.Sequential([keras.Input((3,)), *layers])
    lambdas.save(tmp_path / "lambda.keras")
    ran.unlink(missing_ok=True)
    with pytest.raises(ArtifactError, match="Lambda"):
        load_network(tmp_path / "lambda.keras")
    assert not ran.exists()
    assert load_network(tmp_path / "lambda.keras", allow_pickle=True).network

    model = keras.Sequential([keras.Input((3,)), L.Dense(2)])
    model.save(tmp_path / "net.keras")
    config = json.loads(model.to_json())
    config["config"]["layers"][-1]["config"]["units"] = 10**9
    large = exchanged(tmp_path / "net.keras", tmp_path / "large.keras", config)
    with pytest.raises(ArtifactError, match="Take the file from where it was saved"):
        load_network(large)
    (tmp_path / "no.keras").write_bytes(b"no zip at all")
    with pytest.raises(ArtifactError, match="can't be read as a Keras model"):
        load_network(tmp_path / "no.keras")


def test_an_unbuilt_model_and_images_the_other_way_round_get_advice(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no variables yet"):
        load_network(keras.Sequential([L.Dense(2)]))
    with pytest.raises(InputError, match="channels last"):
        farandole.save(image_model(), tmp_path / "net", {"image": np.zeros((1, 3, 8, 8), "f4")})
