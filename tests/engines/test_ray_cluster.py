from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farandole.engines.ray_cluster import _same_place


@pytest.mark.parametrize(
    ("address", "is_same"),
    [
        ("10.0.0.5:6379", True),
        ("127.0.0.1:6379", True),
        ("localhost:6379", True),
        ("[::1]:6379", True),
        ("localhost:6380", False),
        ("10.0.0.6:6379", False),
        ("10.0.0.5", False),
    ],
)
def test_an_address_has_several_names(address: str, is_same: bool) -> None:
    node: Any = SimpleNamespace(util=SimpleNamespace(get_node_ip_address=lambda: "10.0.0.5"))
    assert _same_place(node, address, "10.0.0.5:6379") == is_same
