"""A layer of a transformer, for texts of different lengths, without work on padding.

Tokens of all texts stand in one tensor, (tokens, width), one text after another. Only for
attention are texts padded side by side, with a mask. Names are those of BERT's checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from farandole.ragged import Ragged

NORM_EPSILON = 1e-12


@dataclass(frozen=True)
class Packing:
    """The places of packed tokens: in their text, and in a padded table with a text a line.

    >>> packing = Packing.of(Ragged.of([torch.tensor([7, 8, 9]), torch.tensor([7])]))
    >>> packing.positions.tolist(), packing.places.tolist()
    ([0, 1, 2, 0], [0, 1, 2, 3])
    """

    mask: torch.Tensor
    """(texts, longest): True where there is a token."""
    places: torch.Tensor
    """The place of each token in that table, counted line by line."""
    positions: torch.Tensor
    """The place of each token in its text."""
    owners: torch.Tensor
    """The text of each token."""

    @classmethod
    def of(cls, texts: Ragged) -> Packing:
        """Find the places of all tokens."""
        owners, mask = texts.owners, texts.mask()
        positions = torch.arange(len(owners), device=owners.device) - texts.starts[owners]
        return cls(mask, owners * mask.shape[1] + positions, positions, owners)

    def pad(self, values: torch.Tensor, heads: int) -> torch.Tensor:
        """(tokens, width) → (texts, heads, longest, width / heads), zero where no token is."""
        table = values.new_zeros(self.mask.numel(), values.shape[1])
        table = table.index_copy(0, self.places, values)
        return table.view(*self.mask.shape, heads, -1).transpose(1, 2)

    def unpad(self, table: torch.Tensor) -> torch.Tensor:
        """Undo `pad`: (texts, heads, longest, width / heads) → (tokens, width)."""
        return table.transpose(1, 2).flatten(0, 1).flatten(1)[self.places]


class TransformerLayer(nn.Module):
    """Self-attention among the tokens of a text, then a perceptron for each token.

    >>> texts = Packing.of(Ragged.of([torch.tensor([7, 8, 9]), torch.tensor([7])]))
    >>> TransformerLayer(8, heads=2, inner=16)(torch.zeros(4, 8), texts).shape
    torch.Size([4, 8])
    """

    def __init__(self, width: int, heads: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        attention = {"self": Attention(width, heads, dropout), "output": ResidualNorm(width, width)}
        self.attention = nn.ModuleDict(attention)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.output = ResidualNorm(inner, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: torch.Tensor, packing: Packing) -> torch.Tensor:
        """Apply the layer."""
        seen = self.attention["self"](values, packing)
        values = self.attention["output"](seen, values, self.dropout)
        inner = F.gelu(self.intermediate["dense"](values))
        found: torch.Tensor = self.output(inner, values, self.dropout)
        return found


class Attention(nn.Module):
    """Multi-head self-attention within each text."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, values: torch.Tensor, packing: Packing) -> torch.Tensor:
        """Apply attention."""
        if len(values) == 0:  # no tokens
            return values
        mixture = F.scaled_dot_product_attention(
            packing.pad(self.query(values), self.heads),
            packing.pad(self.key(values), self.heads),
            packing.pad(self.value(values), self.heads),
            attn_mask=packing.mask[:, None, None],
            dropout_p=self.dropout if self.training else 0.0,
        )
        return packing.unpad(mixture)

    def extra_repr(self) -> str:
        """Show what its layers don't."""
        return f"heads={self.heads}, dropout={self.dropout}"


class ResidualNorm(nn.Module):
    """A linear layer, a residual connection and a layer norm."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.dense = nn.Linear(before, after)
        self.LayerNorm = nn.LayerNorm(after, eps=NORM_EPSILON)

    def forward(
        self, values: torch.Tensor, there: torch.Tensor, dropout: nn.Dropout
    ) -> torch.Tensor:
        """Apply the layer."""
        found: torch.Tensor = self.LayerNorm(dropout(self.dense(values)) + there)
        return found
