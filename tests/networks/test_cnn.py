from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from farandole.errors import InputError
from farandole.networks import CNN, Ragged

SIZES = [(5, 7), (1, 1), (2, 9), (8, 3), (4, 4)]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"pool": "mean", "activation": "sigmoid"},  # σ(0) isn't 0: padding would show
    {"kernel": 5, "filters": (3, 4, 5), "activation": "tanh"},
    {"batch_norm": True, "activation": "softplus"},
    {"batch_norm": True, "pool": "mean"},
]


def images(channels: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(*size, channels, generator=generator, dtype=dtype) for size in SIZES]


def alone(net: CNN, image: torch.Tensor) -> torch.Tensor:
    """One image, not padded, through the functions of torch."""
    values = image.permute(2, 0, 1)[None]
    for block in net.blocks:
        values = block.convolution(values)
        if block.norm is not None:
            n = block.norm
            values = F.batch_norm(values, n.running_mean, n.running_var, n.weight, n.bias)
        values = block.activation(values)
        if net.pool == "max":
            values = F.max_pool2d(values, 2, ceil_mode=True)
        else:
            values = F.avg_pool2d(values, 2, ceil_mode=True)
    return net.head(values.mean((2, 3)))[0]


def disturbed(net: CNN) -> CNN:
    """Biases and statistics that are not zero: padding would show."""
    generator = torch.Generator().manual_seed(5)
    for tensor in net.state_dict().values():
        if tensor.dim() == 1:
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
    return net


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_batch_is_its_images(options: dict[str, Any], dtype: torch.dtype, rtol: float) -> None:
    net = disturbed(CNN(2, 3, seed=1, **options)).to(dtype).eval()
    rows = images(2, dtype)
    batch = net(Ragged.of(rows, axes=2))
    single = torch.stack([alone(net, row) for row in rows])
    torch.testing.assert_close(batch, single, rtol=rtol, atol=rtol)

    weights = torch.arange(15, dtype=dtype).reshape(5, 3)
    gradients = torch.autograd.grad((batch * weights).sum(), list(net.parameters()))
    expected = torch.autograd.grad((single * weights).sum(), list(net.parameters()))
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=10 * rtol, atol=10 * rtol)


def test_statistics_are_those_of_pixels_that_exist() -> None:
    net = disturbed(CNN(2, 3, filters=(4,), batch_norm=True, seed=1)).double()
    norm = net.blocks[0].norm
    norm.reset_running_stats()
    norm.momentum = 1.0
    rows = images(2)
    net(Ragged.of(rows, axes=2))
    pixels = torch.cat(
        [net.blocks[0].convolution(row.permute(2, 0, 1)[None]).flatten(2)[0].T for row in rows]
    )
    torch.testing.assert_close(norm.running_mean, pixels.mean(0).detach())
    torch.testing.assert_close(norm.running_var, pixels.var(0).detach())


@pytest.mark.parametrize("batch_norm", [True, False])
def test_images_of_one_size_are_a_tensor(batch_norm: bool) -> None:
    net = CNN(3, 2, batch_norm=batch_norm)
    rows = torch.randn(4, 6, 5, 3)
    ragged = Ragged.of(list(rows), axes=2)
    torch.testing.assert_close(net(ragged), net(rows.permute(0, 3, 1, 2)))


def test_gray_bytes_and_integers() -> None:
    net = CNN(1, 2)
    image = torch.randint(0, 256, (6, 5), dtype=torch.uint8)
    scaled = net((image / 255)[None, None])
    torch.testing.assert_close(net(Ragged.of([image], axes=2)), scaled)
    torch.testing.assert_close(net(Ragged.of([image[..., None]], axes=2)), scaled)
    torch.testing.assert_close(net(image[None, None]), scaled)
    torch.testing.assert_close(net(image[None, None].int()), scaled)
    torch.testing.assert_close(net(Ragged.of([image.long()], axes=2)), scaled)


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_batches_without_rows_or_pixels(pool: str) -> None:
    net = CNN(2, 3, pool=pool, batch_norm=True)
    before = copy.deepcopy(net.state_dict())
    for rows in (0, 2):
        for shape in ((0, 2), (0,), (0, 0)):
            empty = Ragged(torch.zeros(shape), torch.zeros(rows, 2, dtype=torch.int64))
            outputs = net(empty)
            assert outputs.shape == (rows, 3)
            torch.testing.assert_close(outputs, net.head.bias.expand(rows, 3))
            net.zero_grad()
            outputs.sum().backward()
            assert all(p.grad is not None for p in net.parameters())
            assert all(bool(p.grad.isfinite().all()) for p in net.parameters())
    assert net(torch.zeros(0, 2, 5, 5)).shape == (0, 3)
    assert all(torch.equal(before[name], now) for name, now in net.state_dict().items())


def test_a_single_pixel_trains() -> None:
    net = CNN(1, 1, batch_norm=True)
    net(Ragged.of([torch.ones(1, 1)], axes=2)).sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


def test_dropout_of_a_row_does_not_depend_on_the_size_of_others() -> None:
    net = CNN(1, 2, dropout=0.5)
    small, large = torch.rand(3, 3), torch.rand(9, 9)
    results = []
    for other in (small, large):
        torch.manual_seed(0)
        results.append(net(Ragged.of([small, other], axes=2))[0])
    torch.testing.assert_close(*results)


def test_bfloat16_autocast(bfloat16: torch.autocast) -> None:
    net = CNN(1, 2, batch_norm=True)
    with bfloat16:
        outputs = net(Ragged.of([torch.rand(9, 5), torch.rand(3, 3)], axes=2))
    outputs.float().sum().backward()
    assert bool(outputs.isfinite().all())


class Other(nn.BatchNorm1d):
    calls = 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        type(self).calls += 1
        return input


def test_another_normalisation_in_place_of_the_first_is_always_called() -> None:
    net = CNN(1, 2, batch_norm=True)
    for block in net.blocks:
        block.norm = Other(block.norm.num_features)
    net(Ragged(torch.zeros(0), torch.zeros(0, 2, dtype=torch.int64)))
    net(torch.zeros(1, 1, 1, 1))
    assert Other.calls == 4


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: CNN(1, 2, kernel=4), "kernel must be odd.* Received: kernel=4"),
        (lambda: CNN(1, 2, filters=()), r"filters must be 1 or more.*Received: filters=\(\)"),
        (lambda: CNN(1, 2, pool="men"), "pool='men'. Did you mean 'mean'"),
        (lambda: CNN(0, 2), "Received: channels=0"),
        (lambda: CNN(3, 2)(torch.zeros(1, 4, 5, 5)), r"has channels=3. .* shape \(4, 5, 5\)"),
        (lambda: CNN(3, 2)(Ragged.of([torch.zeros(2, 2)], axes=2)), r"of shape \(\)"),
        (lambda: CNN(1, 2)(Ragged.of([torch.zeros(2)])), "takes Ragged images"),
        (lambda: CNN(1, 2, initialization="spark"), "linear layers with a bias only"),
    ],
)
def test_wrong_arguments(make: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make()
