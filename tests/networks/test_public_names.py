from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from tests.test_public_names import check_example, documented, offered_names

from farandole import networks


def test_all_is_what_the_room_offers() -> None:
    text = Path(inspect.getfile(networks)).read_text(encoding="utf-8")
    offered = offered_names(text, "farandole.networks")
    assert {*offered, "Ragged"} == set(networks.__all__)
    assert all(hasattr(networks, name) for name in networks.__all__)


@pytest.mark.parametrize("name", documented(networks))
def test_public_name_has_an_example(name: str) -> None:
    check_example(networks, name)


@pytest.mark.parametrize("kind", [networks.MLP, networks.CNN, networks.RNN, networks.GNN])
def test_arguments_are_documented_and_kept(kind: type) -> None:
    network = {
        networks.MLP: lambda: networks.MLP([2, 2]),
        networks.CNN: lambda: networks.CNN(1, 2),
        networks.RNN: lambda: networks.RNN(1, 2),
        networks.GNN: lambda: networks.GNN(1, 2),
    }[kind]()
    for name, parameter in inspect.signature(kind).parameters.items():
        assert f"    {name}: " in (kind.__doc__ or "")
        kept = getattr(network, name)
        assert parameter.default in (inspect.Parameter.empty, kept)
