"""What is on disk → a model: a saved folder, or a bare file that is told its signature."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from farandole.artifact import Signature, load_network
from farandole.errors import ArtifactError, InputError
from farandole.inference import Predictor
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

    def load(self, name: str, version: str, path: Path) -> Model:
        """One version of a model."""
        network, signature = load_network(path, allow_pickle=self.allow_pickle)
        if signature is None and self.signature is not None:
            signature = self.signature
        if signature is None:
            raise InputError(
                f"{str(path)!r} doesn't say what the network takes. Give a signature file: JSON "
                'such as {"features": ["x"], "shapes": [[4]], "dtypes": ["float32"], '
                '"head": "softmax", "outputs": 3}.'
            )
        return Model(name, version, Predictor(network, signature), self.labels)
