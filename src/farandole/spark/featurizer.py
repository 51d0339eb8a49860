"""Featurizer: what a layer of a network makes of each row, as a column of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from pyspark.ml import Transformer
from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasInputCols, HasOutputCol
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter

from farandole import _spark
from farandole.artifact import Artifact, LoadedNetwork, Signature, load_network, network_to_json
from farandole.data import Columns, quote_name, refuse_reserved
from farandole.errors import ArtifactError, InputError
from farandole.features import Cut, Layers, guess_inputs, layers, num_features
from farandole.inference import NULLS_DOC, predict_udf
from farandole.networks import ragged_axes
from farandole.spark.file_systems import reading, writing
from farandole.spark.illegal_arguments import entry_points, illegal_arguments
from farandole.spark.io import Reader, Writer, is_trusting, read_artifact
from farandole.spark.metadata import write_metadata
from farandole.spark.options import FeaturizerOptions, with_signature
from farandole.spark.params import (
    OptionalParams,
    ParamInfo,
    boolean,
    declare,
    set_checked,
    set_defaults,
    text,
    whole,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FOUND = "__farandole_features"

PARAMS: dict[str, ParamInfo] = {
    "model": ParamInfo(
        TypeConverters.identity, "a module, a trained model, or a saved network's path"
    ),
    "layer": ParamInfo(text, "the name of the layer whose output is wanted"),
    "pooling": ParamInfo(
        text, "'mean', 'max', 'flatten', or 'none' for a layer of vectors", "mean"
    ),
    "channelAxis": ParamInfo(
        whole, "1 or -1, where the channels of the output are, if that is unclear"
    ),
    "inputShape": ParamInfo(
        TypeConverters.toListInt, "what to make of a row, such as [3, 224, 224]"
    ),
    "batchSize": ParamInfo(TypeConverters.identity, "rows at once: a number, or 'auto'", "auto"),
    "precision": ParamInfo(text, "'bfloat16' or 'int8'"),
    "device": ParamInfo(text, "'auto': the GPU that Spark granted; 'cpu', or 'cuda'", "auto"),
    "nulls": ParamInfo(text, NULLS_DOC, "error"),
    "allowPickle": ParamInfo(boolean, "let save() pickle what JSON can't describe", False),
}


@declare(PARAMS)
class FeaturizerParams(HasInputCol, HasInputCols, HasOutputCol, OptionalParams):
    """What a featurizer needs to know."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        set_defaults(self, PARAMS)

    def chosen_inputs(self) -> list[str]:
        """The columns that the network takes."""
        one, several = self.isSet("inputCol"), self.isSet("inputCols")
        if one == several:
            raise InputError(f"Set inputCol or inputCols{', not both' if one else ''}.")
        return list(self.getOrDefault("inputCols")) if several else [self.getOrDefault("inputCol")]


@entry_points("transform")
@with_signature(FeaturizerOptions)
class Featurizer(FeaturizerParams, Transformer, MLWritable, MLReadable["Featurizer"]):
    """Adds a column with what one layer of a network gives for each row.

    The network is left at that layer: what lies behind it is never computed.

    Args:
        **params: any param by name: `model` (a module, a trained model, or the path of a saved
            one), `layer`, `inputCol` or `inputCols`, `outputCol`, `pooling`, `channelAxis`,
            `inputShape`, `batchSize`, `precision`, `device`, `nulls`. `explainParams()` lists
            all of them.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> print(Featurizer.layers(net))
    layer  kind    output  parameters
    0      Linear  8               40
    1      ReLU    8                0
    2      Linear  3               27
    for one row of 4
    >>> Featurizer(model=net, layer="1", inputCol="x", outputCol="features").getPooling()
    'mean'
    """

    def __init__(self, **params: Unpack[FeaturizerOptions]) -> None:
        super().__init__()
        set_checked(self, {**params})

    def setParams(self, **params: Unpack[FeaturizerOptions]) -> Featurizer:
        """Set several params at once."""
        set_checked(self, {**params})
        return self

    @staticmethod
    def layers(model: Any, inputShape: Sequence[int] | None = None) -> Layers:
        """List the layers of a model, with what they give for one row; printed, a table."""
        network, signature = load_network(model, allow_pickle=is_trusting())
        return layers(network, input_shape=inputShape, signature=signature)

    def loaded(self) -> LoadedNetwork:
        """The network, and what it takes, if that is known."""
        if not self.isSet("model"):
            raise InputError("model is not set: Featurizer(model=...)")
        network, signature = load_network(self.getModel(), allow_pickle=is_trusting())  # type: ignore[attr-defined]
        known = signature is not None and signature.features and not self.isSet("inputShape")
        return LoadedNetwork(network, signature if known else None)

    @illegal_arguments
    def _transform(self, dataset: DataFrame) -> DataFrame:
        from pyspark.ml.functions import array_to_vector
        from pyspark.sql import functions as F

        refuse_reserved(dataset.columns)
        target = self._target(dataset.columns)
        found = self._cut()
        self._check_inputs(dataset, found)
        size = num_features(found.network, self.value_of("inputShape"), found.signature)  # type: ignore[arg-type]
        extract = self._udf(found, size).spark_udf(dataset.sparkSession)
        columns = [F.col(quote_name(name)) for name in self.chosen_inputs()]
        rows = dataset.select("*", extract(*columns).alias(_FOUND))
        vectors = F.when(F.col(_FOUND).isNotNull(), array_to_vector(F.col(_FOUND)))
        about = {} if size is None else {"ml_attr": {"num_attrs": size}}
        return rows.select("*", vectors.alias(target, metadata=about)).drop(_FOUND)

    def _target(self, existing: Sequence[str]) -> str:
        name = str(self.getOutputCol())
        if name in existing:
            raise InputError(
                f"The column {name!r} exists already, but outputCol would write to it. Drop it, or "
                "set outputCol to another name."
            )
        return name

    def _cut(self) -> LoadedNetwork:
        """The first part of the network, with the signature of the whole."""
        network, signature = self.loaded()
        if not self.isSet("layer"):
            raise InputError(
                "layer is not set. Featurizer.layers(model) lists those that there are."
            )
        pooling, axis = self.getOrDefault("pooling"), self.value_of("channelAxis")
        return LoadedNetwork(
            Cut(network, self.getOrDefault("layer"), pooling, channel_axis=axis), signature
        )

    def _check_inputs(self, dataset: DataFrame, found: LoadedNetwork) -> None:
        names, signature = self.chosen_inputs(), found.signature
        if signature is not None and len(signature.features) != len(names):
            raise InputError(
                f"The network takes {len(signature.features)} columns, in the order "
                f"{', '.join(signature.features)}. Received: {', '.join(names)}"
            )
        axes = ragged_axes(found.network) or (0,) * len(names)
        fitting = axes if len(axes) == len(names) else None
        Columns(tuple(names)).check(_spark.arrow_schema(dataset), fitting)

    def _udf(self, found: LoadedNetwork, size: int | None) -> Any:
        shape, signature = self.value_of("inputShape"), found.signature
        if signature is not None:
            names = tuple(self.chosen_inputs())
            signature = replace(
                signature, features=names, head="identity", outputs=size or 1, thresholds=()
            )
        return predict_udf(
            LoadedNetwork(found.network, signature),
            answer="raw",
            batch_size=self.getOrDefault("batchSize"),
            precision=self.value_of("precision"),
            device=self.getOrDefault("device"),
            nulls=self.getOrDefault("nulls"),
            features=self.chosen_inputs(),
            input_shapes=None if shape is None else [tuple(shape)],
        )

    def write(self) -> MLWriter:
        """A writer of a folder of safetensors and JSON."""
        return FeaturizerWriter(self)

    @classmethod
    def read(cls) -> MLReader[Featurizer]:
        """A reader that runs no code from the folder."""
        return FeaturizerReader(cls)


class FeaturizerWriter(Writer):
    """Writes a Featurizer, with the whole network, so that other layers can be asked for later."""

    def __init__(self, featurizer: Any) -> None:
        super().__init__()
        self._featurizer = featurizer
        self.uid = featurizer.uid

    def saveImpl(self, path: str) -> None:
        """The network first, then the metadata."""
        instance = self._featurizer
        pickles = bool(instance.getOrDefault("allowPickle")) or is_trusting()
        artifact = _artifact(instance.loaded(), instance.value_of("inputShape"), pickles)
        plain = {p.name: value for p, value in instance._paramMap.items() if p.name != "model"}
        with writing(self.sparkSession, path) as folder:
            artifact.save(folder / "network", allow_pickle=pickles)
        write_metadata(instance, path, self.sparkSession, plain)


class FeaturizerReader(Reader):
    """Reads a Featurizer."""

    def loaded(self, path: str) -> Any:
        """Params, then the network."""
        instance = self.restored(path)
        with reading(self.sparkSession, path) as folder:
            artifact = read_artifact(folder / "network")
        known = artifact.signature if artifact.signature.features else None
        instance._set(model=LoadedNetwork(artifact.network, known))
        return instance


_UNKNOWN = Signature(features=(), shapes=(), dtypes=(), head="identity", outputs=0)


def _artifact(found: LoadedNetwork, input_shape: list[int] | None, pickles: bool) -> Artifact:
    network, signature = found
    if signature is None and network_to_json(network) is None and not pickles:
        signature = _of_example(found, input_shape)
    return Artifact(network, signature or _UNKNOWN)


def _of_example(found: LoadedNetwork, input_shape: list[int] | None) -> Signature:
    """What a network of one's own class takes: it is saved as a program, which has to know."""
    network = found.network
    rows = list(guess_inputs(network, input_shape)) if ragged_axes(network) is None else []
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
