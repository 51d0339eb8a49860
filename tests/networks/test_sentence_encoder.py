"""The sentence encoder against torch's own transformer layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from farandole.artifact import Artifact, Signature, describe
from farandole.errors import InputError
from farandole.networks import Ragged, SentenceEncoder

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
    description = describe(net)
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
        (torch.zeros(2, 3), r"arrays of whole numbers.*torch\.float32"),
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
