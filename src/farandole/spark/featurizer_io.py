"""Saving and loading a Featurizer: its params, and its network as an artifact."""

from __future__ import annotations

from typing import Any

from farandole.artifact import Artifact, Signature, describe
from farandole.errors import ArtifactError
from farandole.features import examples
from farandole.inference import Loaded
from farandole.networks import ragged_axes
from farandole.spark.io import (
    Reader,
    Writer,
    is_trusting,
    reading,
    write_metadata,
    writing,
)


class FeaturizerWriter(Writer):
    """Writes a Featurizer, with the whole network, so that other layers can be asked for later."""

    def __init__(self, featurizer: Any) -> None:
        super().__init__()
        self._featurizer = featurizer

    def saveImpl(self, path: str) -> None:
        """The network first, then the metadata."""
        stage = self._featurizer
        pickles = bool(stage.getOrDefault("allowPickle"))
        artifact = _artifact(stage.loaded(), stage.value_of("inputShape"), pickles)
        plain = {p.name: value for p, value in stage._paramMap.items() if p.name != "model"}
        with writing(self.sparkSession, path) as folder:
            artifact.save(folder / "network", allow_pickle=pickles)
        write_metadata(stage, path, self.sparkSession, plain)


class FeaturizerReader(Reader):
    """Reads a Featurizer."""

    def load(self, path: str) -> Any:
        """Params, then the network."""
        stage = self.restored(path)
        with reading(self.sparkSession, path) as folder:
            artifact = Artifact.load(folder / "network", allow_pickle=is_trusting())
        known = artifact.signature if artifact.signature.features else None
        stage._set(model=Loaded(artifact.network, known))
        return stage


_UNKNOWN = Signature(features=(), shapes=(), dtypes=(), head="identity", outputs=0)


def _artifact(found: Loaded, input_shape: list[int] | None, pickles: bool) -> Artifact:
    network, signature = found
    if signature is None and describe(network) is None and not pickles:
        signature = _of_example(found, input_shape)
    return Artifact(network, signature or _UNKNOWN)


def _of_example(found: Loaded, input_shape: list[int] | None) -> Signature:
    """What a network of one's own class takes: it is saved as a program, which has to know."""
    network = found.network
    rows = list(examples(network, input_shape)) if ragged_axes(network) is None else []
    if len(rows) != 1 or (input_shape is None and rows[0][0].dim() != 2):
        raise ArtifactError(
            f"To save a {type(network).__name__}, which is more than standard layers, the shape of "
            "a row has to be known. Set inputShape; or set allowPickle=True if those who load this "
            "trust you (loading a pickle runs code)."
        )
    shape, dtype = tuple(rows[0][0].shape[1:]), str(rows[0][0].dtype).removeprefix("torch.")
    return Signature(
        features=("input",), shapes=(shape,), dtypes=(dtype,), head="identity", outputs=1
    )
