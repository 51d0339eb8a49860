from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from farandole.errors import InputError
from farandole.networks import GNN, Ragged

# (nodes, edges): a path, a triangle with a tail, no edge, a loop and a repetition, no node
GRAPHS: list[tuple[int, list[tuple[int, int]]]] = [
    (4, [(0, 1), (1, 2), (2, 3)]),
    (5, [(0, 1), (1, 2), (2, 0), (4, 2)]),
    (3, []),
    (3, [(1, 1), (0, 2), (2, 0), (0, 2)]),
    (0, []),
]
OPTIONS: list[dict[str, Any]] = [
    {"kind": kind, "readout": readout, "directed": directed}
    for kind in ("gcn", "sage")
    for readout in ("mean", "sum", "max", "first")
    for directed in (False, True)
]


def batch(dtype: torch.dtype = torch.float64) -> tuple[Ragged, Ragged]:
    generator = torch.Generator().manual_seed(3)
    nodes = [torch.randn(n, 3, generator=generator, dtype=dtype) for n, _ in GRAPHS]
    edges = [torch.tensor(e, dtype=torch.int64).reshape(-1, 2) for _, e in GRAPHS]
    return Ragged.of(nodes), Ragged.of(edges)


def split(rows: Ragged) -> list[torch.Tensor]:
    return list(rows.values.split(rows.lengths.tolist()))


def dense(net: GNN, values: np.ndarray, edges: list[tuple[int, int]]) -> np.ndarray:
    """One graph by its matrix of neighbours."""
    n = len(values)
    if n == 0:
        return net.head.bias.detach().numpy()
    heard = np.zeros((n, n))  # heard[v, u]: v hears from u
    for source, target in edges:
        heard[target, source] = 1
        if not net.directed:
            heard[source, target] = 1
    if net.kind == "gcn":
        heard = np.maximum(heard, np.eye(n))
        root = np.diag(1 / np.sqrt(heard.sum(1)))
        heard = root @ heard @ root
    else:
        heard = heard / np.maximum(heard.sum(1, keepdims=True), 1)
    for hop in net.hops:
        weight, bias = (p.detach().numpy() for p in hop.linear.parameters())
        if net.kind == "gcn":
            values = heard @ (values @ weight.T) + bias
        else:
            own, others = np.split(weight, 2, axis=1)
            values = values @ own.T + heard @ values @ others.T + bias
        values = np.tanh(values)
    reads = {"mean": values.mean(0), "sum": values.sum(0), "max": values.max(0)}
    read = reads.get(net.readout, values[0])
    weight, bias = (p.detach().numpy() for p in net.head.parameters())
    return weight @ read + bias


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_matrices_agree(options: dict[str, Any]) -> None:
    net = GNN(3, 2, hidden=6, activation="tanh", initialization="torch", seed=2, **options).double()
    nodes, edges = batch()
    expected = [
        dense(net, values.numpy(), graph)
        for values, (_, graph) in zip(split(nodes), GRAPHS, strict=True)
    ]
    np.testing.assert_allclose(net(nodes, edges).detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_graphs_do_not_meet(options: dict[str, Any], dtype: torch.dtype, rtol: float) -> None:
    net = GNN(3, 2, hidden=6, seed=2, **options).to(dtype)
    nodes, edges = batch(dtype)
    together = net(nodes, edges)
    single = torch.cat(
        [
            net(Ragged.of([n]), Ragged.of([e]))
            for n, e in zip(split(nodes), split(edges), strict=True)
        ]
    )
    torch.testing.assert_close(together, single, rtol=rtol, atol=rtol)
    gradients = torch.autograd.grad(together.square().sum(), list(net.parameters()))
    expected = torch.autograd.grad(single.square().sum(), list(net.parameters()))
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=10 * rtol, atol=10 * rtol)


def test_directed_edges_carry_one_way() -> None:
    nodes, edges = Ragged.of([torch.eye(2)]), Ragged.of([torch.tensor([[0, 1]])])
    back = Ragged.of([torch.tensor([[1, 0]])])
    for directed in (True, False):
        net = GNN(2, 1, readout="first", directed=directed, seed=1)
        assert torch.equal(net(nodes, edges), net(nodes, back)) != directed


def test_batch_norm_and_dropout() -> None:
    net = GNN(3, 2, layers=1, batch_norm=True, seed=1).double()
    nodes, edges = batch()
    net(nodes, edges).sum().backward()
    norm = net.hops[0].norm
    assert norm.running_mean.abs().sum() > 0
    net.zero_grad()
    one = Ragged.of([torch.ones(1, 3)])
    net(one, Ragged.of([torch.zeros(0, 2)])).sum().backward()
    noisy = GNN(3, 2, dropout=0.5).double()
    assert not torch.equal(noisy(nodes, edges), noisy(nodes, edges))
    assert torch.equal(noisy.eval()(nodes, edges), noisy(nodes, edges))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", [(0, 2), (0,), (0, 0)])
def test_no_rows_no_nodes_no_edges(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    net = GNN(3, 2, batch_norm=True, **options)
    no_edges = torch.zeros(shape)
    for rows in (0, 2):
        sizes = torch.zeros(rows, 1, dtype=torch.int64)
        outputs = net(Ragged(torch.zeros(0, 3), sizes), Ragged(no_edges, sizes))
        assert outputs.shape == (rows, 2)
        net.zero_grad()
        outputs.sum().backward()
        assert all(p.grad is not None for p in net.parameters())
    lone = Ragged.of([torch.ones(2, 3), torch.ones(1, 3)])
    outputs = net(lone, Ragged(no_edges, torch.zeros(2, 1, dtype=torch.int64)))
    assert bool(outputs.isfinite().all())


def test_one_number_a_node_and_small_integers() -> None:
    net = GNN(1, 2)
    edges = Ragged.of([torch.tensor([[0, 1]], dtype=torch.int32)])
    nodes = torch.tensor([1, 2])
    expected = net(Ragged.of([nodes.float()[:, None]]), edges)
    torch.testing.assert_close(net(Ragged.of([nodes]), edges), expected)


def test_bfloat16_autocast(bfloat16: torch.autocast) -> None:
    net = GNN(3, 2, batch_norm=True, kind="sage", readout="max")
    with bfloat16:
        outputs = net(*batch(torch.float32))
    outputs.float().sum().backward()
    assert bool(outputs.isfinite().all())


def forward(nodes: int, edges: list[list[Any]], graphs: int = 1) -> None:
    GNN(3, 2)(Ragged.of([torch.zeros(nodes, 3)] * graphs), Ragged.of([torch.tensor(edges)]))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: GNN(3, 2, kind="gat"), "kind must be 'gcn' or 'sage'.*'gat'"),
        (lambda: GNN(3, 2, readout="frist"), "Did you mean 'first'"),
        (lambda: GNN(3, 2, directed=1), "Received: directed=1"),  # type: ignore[arg-type]
        (
            lambda: forward(2, [[0, 1], [1, 2], [-1, 0]]),
            r"2 of 3 edges .* \(for example \(1, 2\) in a graph of 2 nodes\)",
        ),
        (lambda: forward(2, [[0.0, 1.0]]), "two integers.* torch.float32"),
        (lambda: forward(2, [[0, 1, 0]]), r"two integers.* shape \(3,\)"),
        (lambda: forward(2, [[0, 1]], graphs=2), "nodes of 2 graphs, but edges of 1"),
        (lambda: GNN(4, 2)(*batch()), r"takes 4 numbers a node .* \(3,\)"),
    ],
)
def test_wrong_arguments(make: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make()
