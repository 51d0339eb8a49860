from __future__ import annotations

import math

import pytest
import torch

import farandole
from farandole.training.state_gathering import gather_trees, pack, unpack


def test_a_tree_survives_packing() -> None:
    tree = {"sums": [0.1 + 0.2, math.inf], "moments": (torch.arange(3), torch.tensor(2.5))}
    back = unpack(pack(tree))
    assert back["sums"] == tree["sums"]
    assert [tensor.tolist() for tensor in back["moments"]] == [[0, 1, 2], 2.5]


def test_tensors_that_share_memory_are_packed_each() -> None:
    whole = torch.arange(6.0)
    back = unpack(pack({"whole": whole, "part": whole[2:4], "turned": whole.view(2, 3).T}))
    assert back["part"].tolist() == [2, 3]
    assert back["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]


def own_tree() -> list[object] | None:
    world = farandole.current_world()
    return gather_trees({"rank": world.rank, "values": torch.full((world.rank,), 7.0)}, world)


@pytest.mark.integration
def test_the_leader_gets_the_trees_of_all_workers() -> None:
    leader, *others = farandole.run(own_tree, num_workers=3, engine="local")
    assert others == [None, None]
    assert [tree["rank"] for tree in leader] == [0, 1, 2]
    assert [tree["values"].tolist() for tree in leader] == [[], [7.0], [7.0, 7.0]]
