"""Tokenizer: texts → the numbers of their tokens, as a network has learned to read them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from farandole.arguments import as_integer
from farandole.errors import ArtifactError, InputError, MissingPackage
from farandole.pretrained.weights import MINILM, WeightsSource, find_file
from farandole.ragged import Ragged

TOKENIZER_FILE = "tokenizer.json"
_TEXTS_AT_ONCE = 1024
"""A text's tokens come as Python objects at first."""


class Tokenizer:
    """Splits texts into tokens, as the network that will see them has learned to read.

    It holds the file's content, so that it can be pickled, and works where the file isn't.

    Args:
        source: the `tokenizer.json` of a network, the folder with it, or an installed package that
            carries one; or another Tokenizer.
        max_length: the most tokens of a text; what is longer loses its end.

    >>> import tempfile
    >>> from tokenizers import Tokenizer as Maker, models, pre_tokenizers
    >>> maker = Maker(models.WordLevel({"?": 0, "the": 1, "cat": 2}, unk_token="?"))
    >>> maker.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> maker.save(file := f"{tempfile.mkdtemp()}/tokenizer.json")
    >>> Tokenizer(file).tokens(["the cat", "the black cat"]).padded().tolist()
    [[1, 2, 0], [1, 0, 2]]
    """

    max_length: int
    _packed: bytes

    def __init__(self, source: WeightsSource | Tokenizer = MINILM, max_length: int = 128) -> None:
        self.max_length = as_integer("max_length", max_length, least=3)
        if isinstance(source, Tokenizer):
            self._packed = source._packed
        else:
            self._packed = zlib.compress(find_file(source, TOKENIZER_FILE).read_bytes())
        self._engine()

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocabulary:,} tokens, max_length={self.max_length})"

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self._engine().get_vocab_size())

    @property
    def content(self) -> bytes:
        """The file."""
        return zlib.decompress(self._packed)

    def tokens(self, texts: Sequence[str]) -> Ragged:
        """Give the tokens of each text, those that mark its beginning and end included."""
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(
                    f"A tokenizer takes strings. Received: {text!r} in row {number}. Drop such "
                    "rows, or fill them with an empty string."
                )
        engine = self._engine()
        rows = [
            np.array(found.ids, np.int32)
            for some in _portions(texts)
            for found in engine.encode_batch_fast(some)
        ]
        values = np.concatenate([np.empty(0, np.int32), *rows])
        sizes = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        return Ragged(torch.from_numpy(values), sizes[:, None])

    def _engine(self) -> Any:
        return _engine(self._packed, self.max_length)


@lru_cache(maxsize=4)
def _engine(packed: bytes, max_length: int) -> Any:
    """Make what splits texts: once a process for one content, whoever asks."""
    try:
        from tokenizers import Tokenizer as Engine
    except ImportError:
        raise MissingPackage("tokenizers", "text") from None
    try:
        engine = Engine.from_str(zlib.decompress(packed).decode())
    except Exception as error:  # the package raises nothing more precise
        raise ArtifactError(
            f"This is not a tokenizer's file ({error}). Give the {TOKENIZER_FILE} that belongs to "
            "the weights; older networks have a vocab.txt alone, which does not say enough."
        ) from error
    engine.no_padding()
    engine.enable_truncation(max_length)
    return engine


def _portions(texts: Sequence[str]) -> list[list[str]]:
    starts = range(0, len(texts), _TEXTS_AT_ONCE)
    return [list(texts[start : start + _TEXTS_AT_ONCE]) for start in starts]
