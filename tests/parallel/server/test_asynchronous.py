"""What asynchronous servers are made of, without any other process."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from farandole.errors import InputError, PeerLost
from farandole.parallel import ParameterServer, Totals
from farandole.parallel.server.asynchronous import split_by_size
from farandole.parallel.server.messages import TensorMessage
from farandole.parallel.server.server import ParameterStore
from farandole.parallel.server.staleness import BoundedStaleness
from farandole.parallel.sync_batch_norm import SynchronizedBatchNorm
from farandole.world import World


def test_a_worker_waits_for_the_slowest_and_no_longer() -> None:
    staleness = BoundedStaleness(workers=3, staleness=2, timeout=10)
    for _ in range(3):
        staleness.tick(0)
    staleness.tick(1)
    ticked = []

    def tick() -> None:
        ticked.append(2)
        staleness.tick(2)

    threading.Timer(0.2, tick).start()
    staleness.wait(0)
    assert ticked
    assert staleness.lead == 2


def test_nobody_waits_for_one_that_has_left() -> None:
    staleness = BoundedStaleness(workers=2, staleness=0, timeout=0.05)
    staleness.tick(0)
    staleness.leave(1)
    staleness.wait(0)
    staleness.tick(1)  # it is back, and as far
    staleness.wait(0)
    staleness.tick(0)
    with pytest.raises(PeerLost, match=r"rank 1 did not come along within 0\.05 s"):
        staleness.wait(0)


def test_at_the_end_a_server_waits_until_all_have_left() -> None:
    staleness = BoundedStaleness(workers=2, staleness=0, timeout=0.05)
    staleness.leave(0)
    with pytest.raises(PeerLost, match="rank 1 did not come along"):
        staleness.wait_for_all()
    staleness.leave(1)
    staleness.wait_for_all()


def test_an_error_wakes_those_who_wait() -> None:
    staleness = BoundedStaleness(workers=2, staleness=0, timeout=10)
    staleness.tick(0)
    threading.Timer(0.1, staleness.fail, [ValueError("broken")]).start()
    with pytest.raises(ValueError, match="broken"):
        staleness.wait(0)


def test_a_packet_holds_any_types() -> None:
    dtypes = (torch.bfloat16, torch.float64, torch.float32, torch.complex128, torch.float16)
    tensors = [torch.full((3, number + 1), number, dtype=d) for number, d in enumerate(dtypes)]
    message = TensorMessage(3, tensors)
    message.pack([1.0, 2.0, 3.0], tensors)
    twin = TensorMessage(3, tensors)
    twin.bytes.copy_(message.bytes)
    targets = [torch.zeros_like(tensor) for tensor in tensors]
    twin.unpack(targets)
    assert twin.numbers.tolist() == [1.0, 2.0, 3.0]
    assert all(torch.equal(target, tensor) for target, tensor in zip(targets, tensors, strict=True))
    assert message.size == sum(tensor.nbytes for tensor in tensors)


def test_parameters_are_split_by_size_and_those_that_learn_count_first() -> None:
    network = nn.Sequential(nn.Linear(100, 10), nn.Linear(10, 10), nn.Linear(10, 10))
    network[0].requires_grad_(False)
    parts = split_by_size(network, 2)
    assert {p for part in parts for p in part} == set(network.parameters())
    learning = [sum(p.numel() for p in part if p.requires_grad) for part in parts]
    assert learning == [110, 110]


class _Counting(torch.optim.SGD):
    """An optimizer with an attribute that torch doesn't know, as other people's have."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=1.0)
        self.steps = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        super().step()


@pytest.mark.parametrize("make", [_Counting, lambda p: torch.optim.Adam(p, fused=True, lr=1.0)])
def test_a_master_moves_its_part_as_the_optimizer_would(make: Any) -> None:
    network, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(network.state_dict())
    optimizer = make(
        [{"params": [network.weight], "lr": 1.0}, {"params": [network.bias], "lr": 1.0}]
    )
    store = ParameterStore(
        [network.get_parameter("weight")], BoundedStaleness(2, 0, 1.0), workers=2, timeout=1.0
    )
    store.set_optimizer(optimizer)
    alone = type(optimizer)(twin.parameters())
    alone.param_groups[0]["lr"] = 0.25
    for _ in range(3):
        gradient = torch.randn(2, 3)
        store.apply_gradients([gradient], [0.5, 0.5])
        twin.weight.grad = gradient.clone()
        alone.step()
    target = torch.zeros(2, 3)
    store.copy_to([target])
    torch.testing.assert_close(target, twin.weight.detach())
    assert not torch.equal(network.weight, twin.weight), "the worker's own are left alone"


def test_a_gradient_that_comes_before_the_optimizer() -> None:
    network = nn.Linear(3, 2)
    store = ParameterStore(
        [network.get_parameter("weight")], BoundedStaleness(2, 0, 1.0), workers=2, timeout=5.0
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    threading.Timer(0.1, store.set_optimizer, [optimizer]).start()
    assert store.param_group_count() == 1


def test_alone_a_step_is_the_optimizers() -> None:
    network, twin = nn.Linear(3, 1), nn.Linear(3, 1)
    twin.load_state_dict(network.state_dict())
    sync = ParameterServer(asynchronous=True).attach(network, World())
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    expected = torch.optim.Adam(twin.parameters(), lr=0.1)
    for _ in range(3):
        rows = torch.randn(4, 3)
        sync.zero_grad()
        network(rows).square().sum().backward()
        assert sync.reduce_gradients(Totals(1.0, 4.0)) == Totals(1.0, 4.0)
        sync.step(optimizer)
        expected.zero_grad()
        twin(rows).square().mean().backward()
        expected.step()
    sync.end_epoch(4)
    torch.testing.assert_close(network.weight, twin.weight)
    assert sync.agree_on_stop("why") == "why"
    assert sync.sent == 0
    sync.close()


def test_normalisation_over_all_workers_is_refused() -> None:
    network = nn.Sequential(nn.Linear(2, 2), SynchronizedBatchNorm(2))
    with pytest.raises(InputError, match="sync_batch_norm lets all workers wait"):
        ParameterServer(asynchronous=True).attach(network, World())
