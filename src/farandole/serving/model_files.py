"""What is on disk → a model: a saved folder, one of MLflow's, or a bare file with a signature."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from farandole.artifact import LoadedNetwork, Signature, load_network
from farandole.errors import ArtifactError, InputError
from farandole.inference import Predictor
from farandole.serving.engines import EAGER, choose_engine, own_engine
from farandole.serving.mlflow_model import is_mlflow_model, read_mlflow_model
from farandole.serving.model import Model


def read_signature(path: str) -> Signature:
    """What a network takes and gives, from a file of JSON: `Signature.to_json`.

    >>> import json, tempfile
    >>> file = Path(tempfile.mkdtemp()) / "signature.json"
    >>> said = {"features": ["x"], "shapes": [[4]], "dtypes": ["float32"], "head": "softmax"}
    >>> _ = file.write_text(json.dumps({**said, "outputs": 3}))
    >>> read_signature(str(file)).num_classes
    3
    """
    try:
        said = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"The signature file can't be read: {error}") from error
    try:
        return Signature.from_json(said)
    except ArtifactError as error:
        raise InputError(f"{path!r} is no signature. {error}") from error


@dataclass(frozen=True)
class ModelFiles:
    """How models are loaded."""

    labels: tuple[str, ...] = ()
    allow_pickle: bool = False
    signature: Signature | None = None
    """Of files that have none."""
    engine: str = EAGER
    max_batch: int = 64

    def load(self, name: str, version: str, path: Path) -> Model:
        """One version of a model."""
        network, signature = self._network(path)
        if signature is None:
            raise InputError(
                f"{str(path)!r} doesn't say what the network takes. Give a signature file: JSON "
                'such as {"features": ["x"], "shapes": [[4]], "dtypes": ["float32"], '
                '"head": "softmax", "outputs": 3}.'
            )
        model = Model(
            name, version, Predictor(network, signature), self.labels, own_engine(network)
        )
        return choose_engine(model, self.engine, self.max_batch)

    def _network(self, path: Path) -> LoadedNetwork:
        """What a saved network says of itself counts most, then what the user says."""
        if is_mlflow_model(path):
            return read_mlflow_model(path, self.signature, allow_pickle=self.allow_pickle)
        network, signature = load_network(path, allow_pickle=self.allow_pickle)
        return LoadedNetwork(network, signature or self.signature)
