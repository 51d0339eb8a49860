"""RNN: a recurrent network for sequences whose lengths differ."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from farandole.arguments import as_fraction, as_integer, as_seed, check_choice, check_flag
from farandole.errors import InputError
from farandole.networks.initialization import seeded
from farandole.networks.network import Network, flat_values, layer_dtype
from farandole.ragged import Ragged

CELLS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class RNN(Network):
    """Read a sequence step by step; a linear layer over the last hidden state gives the outputs.

    An empty sequence is read as a single step of zeros.

    Args:
        features: numbers a step; with a vocabulary, the dimensions that a token is embedded in.
        outputs: values to predict.
        hidden: width of the hidden state.
        cell: "lstm" or "gru".
        layers: recurrent layers, one upon another.
        bidirectional: read from the end as well; both last states are used.
        dropout: the share of values that are left out in training, between layers and at the end.
        vocabulary: how many tokens there are, if sequences are of tokens 0 … vocabulary − 1.
        seed: for the same weights (torch's own way to begin) again.

    >>> words = Ragged.of([torch.tensor([3, 1, 4]), torch.tensor([1])])
    >>> RNN(features=8, outputs=2, cell="gru", vocabulary=5)(words).shape
    torch.Size([2, 2])
    """

    ragged_axes: ClassVar[tuple[int, ...]] = (1,)
    """How many axes of each argument's rows may vary: the length."""
    features: int
    outputs: int
    hidden: int
    layers: int
    dropout: float
    vocabulary: int | None

    def __init__(
        self,
        features: int,
        outputs: int,
        hidden: int = 64,
        cell: str = "lstm",
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        vocabulary: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self._remember(
            features=as_integer("features", features),
            outputs=as_integer("outputs", outputs),
            hidden=as_integer("hidden", hidden),
            cell=check_choice("cell", cell, CELLS),
            layers=as_integer("layers", layers),
            bidirectional=check_flag("bidirectional", bidirectional),
            dropout=as_fraction("dropout", dropout),
            vocabulary=None if vocabulary is None else as_integer("vocabulary", vocabulary),
            seed=as_seed(seed),
        )
        with seeded(seed):
            self.embedding = (
                None if self.vocabulary is None else nn.Embedding(self.vocabulary, self.features)
            )
            self.recurrent = CELLS[cell](
                self.features,
                self.hidden,
                num_layers=self.layers,
                batch_first=True,
                bidirectional=bidirectional,
                dropout=self.dropout if self.layers > 1 else 0.0,
            )
            self.last_dropout = nn.Dropout(self.dropout)
            self.head = nn.Linear(self.hidden * (2 if bidirectional else 1), self.outputs)

    def forward(self, sequences: Ragged | torch.Tensor) -> torch.Tensor:
        """Apply the network.

        Args:
            sequences: Ragged rows of (steps, features), or of (steps,) for tokens and for
                features=1; or a tensor of (rows, steps, …).
        """
        if not isinstance(sequences, Ragged):
            sequences = _ragged(sequences)
        steps = Ragged(self._steps(sequences), sequences.sizes).padded()
        lengths = sequences.lengths.cpu().clamp(min=1)
        if steps.shape[1] == 0:  # no sequence has a step
            steps = torch.cat([steps, steps.new_zeros(len(steps), 1, self.features)], 1)
        if len(sequences) == 0:  # torch has no packed sequence without rows: one row is a stand-in
            steps = torch.cat([steps, steps.new_zeros(1, 1, self.features)])
            lengths = torch.ones(1, dtype=torch.int64)
        last = self._read(steps, lengths)[: len(sequences)]
        found: torch.Tensor = self.head(self.last_dropout(last))
        return found

    def _read(self, steps: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(steps, lengths, batch_first=True, enforce_sorted=False)
        _, states = self.recurrent(packed)
        hidden = states[0] if isinstance(states, tuple) else states
        directions = 2 if self.recurrent.bidirectional else 1
        return torch.cat(list(hidden[-directions:]), 1)

    def _steps(self, sequences: Ragged) -> torch.Tensor:
        """The numbers of each step: (steps of all rows, features)."""
        if self.embedding is not None:
            return self._embedded(sequences.values)
        values = flat_values(sequences, self.features)
        if values is None:
            element = tuple(sequences.values.shape[1:])
            raise InputError(
                f"The network takes sequences with {self.features} numbers a step (features). "
                f"Received: steps of shape {element}"
            )
        return values.to(layer_dtype(self.head))

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        assert self.embedding is not None
        if len(tokens) == 0:
            tokens = tokens.new_zeros(0, dtype=torch.int64)
        if tokens.dim() != 1 or tokens.is_floating_point():
            raise InputError(
                "With a vocabulary, a step is one integer. Received: steps of shape "
                f"{tuple(tokens.shape[1:])} and type {tokens.dtype}. Cast the column to arrays of "
                "integers, or leave vocabulary out."
            )
        outside = tokens[(tokens < 0) | (tokens >= self.embedding.num_embeddings)]
        if len(outside):
            raise InputError(
                f"{len(outside)} of {len(tokens)} tokens lie outside of 0 … "
                f"{self.embedding.num_embeddings - 1} (for example {int(outside[0])}). Give the "
                f"network a larger vocabulary. Received: vocabulary={self.vocabulary}"
            )
        found: torch.Tensor = self.embedding(tokens.long())
        return found


def _ragged(sequences: torch.Tensor) -> Ragged:
    """Rows of a tensor, which all have the same length."""
    if sequences.dim() < 2:
        raise InputError(
            "The network takes a tensor of (rows, steps, features), or Ragged rows. Received: "
            f"shape {tuple(sequences.shape)}"
        )
    rows, length = sequences.shape[:2]
    sizes = torch.full((rows, 1), length, device=sequences.device)
    return Ragged(sequences.flatten(0, 1), sizes)
