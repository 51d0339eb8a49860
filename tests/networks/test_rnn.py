from __future__ import annotations

from typing import Any

import pytest
import torch

from farandole.errors import InputError
from farandole.networks import RNN, Ragged

LENGTHS = [4, 1, 7, 2, 7]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"cell": "gru"},
    {"layers": 2, "bidirectional": True},
    {"cell": "gru", "layers": 3, "bidirectional": True},
]


def sequences(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(length, 3, generator=generator, dtype=dtype) for length in LENGTHS]


def alone(net: RNN, steps: torch.Tensor) -> torch.Tensor:
    """One sequence, not packed, through torch's own cell: what it holds at either end."""
    outputs, _ = net.recurrent(steps[None])
    hidden = net.hidden
    last = outputs[0, -1, :hidden]
    if net.bidirectional:
        last = torch.cat([last, outputs[0, 0, hidden:]])
    return net.head(last)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_batch_is_its_sequences(options: dict[str, Any], dtype: torch.dtype, rtol: float) -> None:
    net = RNN(3, 2, hidden=5, seed=1, **options).to(dtype)
    rows = sequences(dtype)
    batch = net(Ragged.of(rows))
    single = torch.stack([alone(net, row) for row in rows])
    torch.testing.assert_close(batch, single, rtol=rtol, atol=rtol)
    gradients = torch.autograd.grad(batch.square().sum(), list(net.parameters()))
    expected = torch.autograd.grad(single.square().sum(), list(net.parameters()))
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=10 * rtol, atol=10 * rtol)


def test_a_tensor_is_sequences_of_one_length() -> None:
    net = RNN(3, 2)
    rows = torch.randn(4, 6, 3)
    torch.testing.assert_close(net(rows), torch.stack([alone(net, row) for row in rows]))


def test_one_number_a_step() -> None:
    net = RNN(1, 2)
    rows = [torch.randn(4), torch.randn(2)]
    expected = net(Ragged.of([row[:, None] for row in rows]))
    torch.testing.assert_close(net(Ragged.of(rows)), expected)
    torch.testing.assert_close(net(rows[0][None]), expected[:1])
    whole = torch.tensor([1, 2, 3])
    torch.testing.assert_close(net(Ragged.of([whole])), net(Ragged.of([whole.float()])))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_tokens_are_embedded(dtype: torch.dtype) -> None:
    net = RNN(4, 2, vocabulary=9, seed=0)
    rows = [torch.tensor([8, 0, 3], dtype=dtype), torch.tensor([1], dtype=dtype)]
    assert net.embedding is not None
    expected = torch.stack([alone(net, net.embedding(row.long())) for row in rows])
    torch.testing.assert_close(net(Ragged.of(rows)), expected)
    torch.testing.assert_close(net(rows[0][None]), expected[:1])


@pytest.mark.parametrize("vocabulary", [None, 9])
def test_an_empty_sequence_is_one_step_of_zeros(vocabulary: int | None) -> None:
    net = RNN(4, 2, vocabulary=vocabulary)
    expected = alone(net, torch.zeros(1, 4))
    full = torch.ones(3, dtype=torch.int64) if vocabulary else torch.ones(3, 4)
    mixed = Ragged.of([full[:0], full, full[:0]])
    torch.testing.assert_close(net(mixed)[0], expected)
    torch.testing.assert_close(net(mixed)[1], net(Ragged.of([full]))[0])
    torch.testing.assert_close(net(mixed)[2], expected)
    for shape in ((0,), (0, 4), (0, 0)):
        nothing = Ragged(torch.zeros(shape), torch.zeros(2, 1, dtype=torch.int64))
        torch.testing.assert_close(net(nothing), expected.expand(2, 2))


@pytest.mark.parametrize("options", [*OPTIONS, {"vocabulary": 5}], ids=str)
def test_a_batch_without_rows(options: dict[str, Any]) -> None:
    net = RNN(3, 2, **options)
    values = torch.zeros(0, dtype=torch.int64) if net.vocabulary else torch.zeros(0, 3)
    outputs = net(Ragged(values, torch.zeros(0, 1, dtype=torch.int64)))
    assert outputs.shape == (0, 2)
    outputs.sum().backward()
    assert all(p.grad is not None and not bool(p.grad.any()) for p in net.parameters())
    if not net.vocabulary:
        assert net(torch.zeros(0, 4, 3)).shape == (0, 2)


def test_dropout_works_at_the_end_of_a_single_layer() -> None:
    net = RNN(3, 2, dropout=0.5)
    rows = Ragged.of(sequences(torch.float32))
    assert not torch.equal(net(rows), net(rows))
    assert torch.equal(net.eval()(rows), net(rows))


def test_bfloat16_autocast(bfloat16: torch.autocast) -> None:
    net = RNN(3, 2)
    with bfloat16:
        outputs = net(Ragged.of(sequences(torch.float32)))
    outputs.float().sum().backward()
    assert bool(outputs.isfinite().all())


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: RNN(3, 2, cell="lstmm"), "cell='lstmm'. Did you mean 'lstm'"),
        (lambda: RNN(3, 2, layers=0), "Received: layers=0"),
        (lambda: RNN(3, 2, vocabulary=0), "Received: vocabulary=0"),
        (lambda: RNN(3, 2)(Ragged.of([torch.zeros(4, 2)])), r"with 3 numbers a step .* \(2,\)"),
        (lambda: RNN(3, 2)(torch.zeros(4)), r"\(rows, steps, features\).* shape \(4,\)"),
        (
            lambda: RNN(3, 2, vocabulary=5)(Ragged.of([torch.tensor([1, 5, -1])])),
            r"2 of 3 tokens lie outside of 0 … 4 \(for example 5\).* Received: vocabulary=5",
        ),
        (lambda: RNN(3, 2, vocabulary=5)(torch.zeros(1, 4)), "one integer. .*torch.float32"),
    ],
)
def test_wrong_arguments(make: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make()
