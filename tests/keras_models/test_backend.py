"""Keras on another backend than torch, and Keras that nobody has imported."""

from __future__ import annotations

import os
import subprocess
import sys

ANOTHER = """
import sys, types
keras = types.ModuleType("keras")
keras.backend = types.SimpleNamespace(backend=lambda: "jax")
sys.modules["keras"] = keras
keras.Model = type("Model", (), {"__call__": lambda self: None})
import farandole
from farandole.errors import InputError
for call in (farandole.train, farandole.predict_udf):
    try:
        call(keras.Model(), *[{}][: call is farandole.train])
    except InputError as error:
        print(error)
"""


def output_of(code: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_another_backend_is_named_with_the_line_to_set() -> None:
    training, predicting = output_of(ANOTHER).splitlines()
    assert training == predicting
    assert "'jax'" in training
    assert 'os.environ["KERAS_BACKEND"] = "torch"' in training


def test_a_model_is_looked_for_without_importing_keras() -> None:
    code = "import sys; from farandole.keras_models import is_keras_model as is_keras\n"
    assert output_of(code + "print(is_keras(3), 'keras' in sys.modules)") == "False False"
