from __future__ import annotations

import pytest

from farandole.engines import addresses
from farandole.engines.addresses import addresses_of, network_stack, own_address


def test_one_network_stack_talks_over_loopback() -> None:
    assert addresses_of(["a 10.0.0.1 4000", "a 10.0.0.1 0"]) == ["127.0.0.1"] * 2


def test_several_talk_over_their_own_addresses() -> None:
    # Two containers of one machine may be seen by the driver under one address: not one stack.
    messages = ["a 10.0.0.1 4000", "b 10.0.0.2 0", "a 10.0.0.1 0"]
    assert addresses_of(messages) == ["10.0.0.1", "10.0.0.2", "10.0.0.1"]


def test_a_stack_has_one_name_of_one_word() -> None:
    assert network_stack() == network_stack()
    assert " " not in network_stack()


def test_the_address_that_the_driver_sees_if_it_is_ours() -> None:
    assert own_address("127.0.0.1", "192.0.2.1") == "127.0.0.1"


def test_else_the_one_that_leads_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "interface_of", lambda host: None)
    assert own_address("203.0.113.9", "127.0.0.1") == "127.0.0.1"
    assert own_address("203.0.113.9", "no-such-host.invalid") == "203.0.113.9"


def test_without_the_drivers_view_the_way_to_the_driver_tells() -> None:
    assert own_address(None, "127.0.0.1") == "127.0.0.1"
    assert own_address(None, "no-such-host.invalid") == "127.0.0.1"
