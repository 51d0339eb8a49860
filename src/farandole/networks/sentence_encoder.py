"""SentenceEncoder: a transformer that makes a vector of a text, or predicts from it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from farandole.arguments import as_fraction, as_integer, as_seed, check_flag
from farandole.errors import InputError
from farandole.networks.initialization import seeded
from farandole.networks.network import Network
from farandole.networks.transformer import NORM_EPSILON, Packing, TransformerLayer
from farandole.ragged import Ragged


class SentenceEncoder(Network):
    """Look at all tokens of a text at once, layer upon layer, and take the mean of what they say.

    By default it has the sizes of MiniLM-L6, 22.6 million weights. They have the names and shapes
    of public BERT checkpoints, so that those load with `load_state_dict`. A text without tokens
    gives zeros.

    Args:
        outputs: values to predict, by a linear layer over the vector; None gives the vector.
        normalize: whether vectors have length 1, so that a product of two is their similarity.
        vocabulary: how many tokens there are.
        width: numbers in a token's vector, and so in the text's.
        layers: how many layers look at the tokens, one upon another.
        heads: at how many things each of them looks at a time.
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
            self.apply(_begin)
            # Its own way to begin, torch's: a small normal one would let it learn slowly.
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
                "The network takes texts as arrays of whole numbers, as a tokenizer gives them. "
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
    """What a token is, and where it stands, as one vector."""

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


def _begin(module: nn.Module) -> None:
    """How BERT began: small and normal, without biases."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
