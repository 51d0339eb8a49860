"""A config is data, or it is refused before Keras makes anything of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import ArtifactError
from farandole.keras_models import RefusedConfig, build_model, require_torch_backend
from farandole.keras_models.config_check import checked_config
from farandole.keras_models.known_classes import CLASSES, CODE, LAYERS

keras = require_torch_backend()
RAN: list[str] = []


@keras.saving.register_keras_serializable(package="strangers")
class Registered(keras.layers.Layer):  # type: ignore[misc]
    """A class of this process's: a config of somebody else's must not make one."""

    def __init__(self, **options: Any) -> None:
        RAN.append("class")
        super().__init__(**options)


@keras.saving.register_keras_serializable(package="strangers")
def registered(x: Any) -> Any:
    RAN.append("function")
    return x


def config() -> dict[str, Any]:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    found: dict[str, Any] = json.loads(model.to_json())
    return found


def with_layer(**layer: Any) -> dict[str, Any]:
    """The config of a model whose last layer is another."""
    found = config()
    found["config"]["layers"][-1] = {"registered_name": None, "config": {}, **layer}
    return found


def with_option(name: str, value: Any) -> dict[str, Any]:
    found = config()
    found["config"]["layers"][-1]["config"][name] = value
    return found


def lambda_config(folder: Path) -> dict[str, Any]:
    """A model whose Lambda writes a file, as Keras itself has saved it."""
    file = str(folder / "ran")
    layer = keras.layers.Lambda(lambda x: (open(file, "w").close(), x)[1], output_shape=(3,))
    model = keras.Sequential([keras.Input((3,)), layer])
    found: dict[str, Any] = json.loads(model.to_json())
    (folder / "ran").unlink(missing_ok=True)
    return found


def function(name: str, module: str = "builtins") -> dict[str, Any]:
    return {"class_name": "function", "module": module, "config": name, "registered_name": name}


ATTACKS = {
    "os.system as a class": with_layer(module="os", class_name="system", config={}),
    "a class of the process": with_layer(
        module="strangers",
        class_name="Registered",
        registered_name="strangers>Registered",
        config={"name": "a"},
    ),
    "the same behind a layer's name": with_layer(
        module="keras.layers",
        class_name="Dense",
        registered_name="strangers>Registered",
        config={"units": 2},
    ),
    "the same as a class's name": with_layer(
        module="keras.layers", class_name="strangers>Registered", config={"name": "a"}
    ),
    "an activation of the process": with_option("activation", "strangers>registered"),
    "the same as a function": with_option("activation", function("strangers>registered")),
    "the same by half of its name": with_option("activation", function("registered")),
    "os.system as an activation": with_option("activation", function("system", "os")),
    "Keras's reader as an activation": with_option("activation", function("deserialize")),
    "a file from the web": with_option("activation", function("get_file", "keras.utils")),
    "a saved model in a saved model": with_layer(
        module="keras.layers", class_name="TFSMLayer", config={"filepath": "/tmp/x"}
    ),
    "a pickle in a layer": with_layer(
        module="keras.layers", class_name="TorchModuleWrapper", config={"module": "gASV"}
    ),
    "a file as a vocabulary": with_layer(
        module="keras.layers", class_name="StringLookup", config={"vocabulary": "/etc/passwd"}
    ),
    "no module: the older format": with_layer(class_name="Dense", config={"units": 2}),
    "another package": with_layer(module="keras_hub.layers", class_name="Dense", config={}),
    "Keras's insides": with_layer(
        module="keras.src.utils.torch_utils", class_name="TorchModuleWrapper", config={}
    ),
    "an operation that calls a function": with_layer(
        module="keras.src.ops.core", class_name="Map", config={}
    ),
    "a lambda as an initializer": with_option(
        "kernel_initializer", {"class_name": "__lambda__", "config": {"value": "4wAA"}}
    ),
    "a layer behind a wrapper": with_layer(
        module="keras.layers",
        class_name="TimeDistributed",
        config={"layer": {"module": "keras.layers", "class_name": "Lambda", "config": {}}},
    ),
    "an unknown key": {**config(), "assets": "x"},
}


@pytest.mark.attack("the config of a Keras model names code", "ArtifactError, and nothing has run")
@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_config_is_refused_and_runs_nothing(name: str) -> None:
    RAN.clear()
    hostile = copy.deepcopy(ATTACKS[name])
    with pytest.raises(RefusedConfig):
        checked_config(hostile)
    with pytest.raises(ArtifactError, match="allow_pickle=True"):
        build_model(hostile)
    assert RAN == []


def test_a_class_of_the_process_that_has_a_layers_name() -> None:
    plain = with_layer(module="keras.layers", class_name="Dense", config={"units": 2})
    checked_config(plain)
    with keras.saving.custom_object_scope({"Dense": Registered}), pytest.raises(RefusedConfig):
        checked_config(plain)


@pytest.mark.attack("a lambda in a Keras model", "ArtifactError, and it hasn't run")
def test_a_lambda_needs_the_word(tmp_path: Path) -> None:
    hostile = lambda_config(tmp_path)
    with pytest.raises(ArtifactError, match="Lambda, which holds a Python function"):
        build_model(hostile)
    assert not (tmp_path / "ran").exists()

    model = build_model(hostile, allow_code=True)
    model(keras.ops.zeros((1, 3)))
    assert (tmp_path / "ran").exists()


def test_a_class_of_ones_own_needs_the_word() -> None:
    own = ATTACKS["a class of the process"]
    RAN.clear()
    model = build_model(copy.deepcopy(own), allow_code=True)
    assert isinstance(model.layers[-1], Registered)
    assert RAN


def test_every_class_of_the_list_is_keras_own() -> None:
    for module in ("layers", "initializers", "losses", "metrics", "optimizers", "constraints"):
        public = getattr(keras, module)
        for name in CLASSES[f"keras.{module}"]:
            assert getattr(public, name).__module__.startswith("keras."), name


def test_layers_that_hold_code_or_read_files_are_not_on_the_list() -> None:
    assert not LAYERS & set(CODE)
    assert not LAYERS & {"Layer", "Wrapper", "Hashing", "HashedCrossing"}


def test_nesting_has_an_end() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RefusedConfig, match="nested too deeply"):
        checked_config({"config": deep})
