from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.engines import traces

from farandole.engines.channel import connect
from farandole.engines.encryption import Credentials, make_certificate
from farandole.engines.gloo_tunnel import GlooTunnel, _listen_below, listening_ports
from farandole.errors import NotAuthentic


@pytest.fixture(scope="module")
def credentials() -> Credentials:
    return Credentials(b"known to this run only", make_certificate())


@pytest.fixture
def tunnel(credentials: Credentials) -> Iterator[GlooTunnel]:
    with closing(GlooTunnel("127.0.0.1", credentials, 60, print)) as found:
        yield found


def test_own_ports_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)):
        expected = [address for address in traces.listening() if address.startswith("127.0.0.1:")]
        assert sorted(f"127.0.0.1:{port}" for port in listening_ports()) == expected
        assert one.getsockname()[1] in listening_ports()


def test_a_proxys_port_is_smaller() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with _listen_below(port) as one, _listen_below(port) as two:
            assert two.getsockname()[1] < one.getsockname()[1] < port


def test_bytes_go_through_both_ways(tunnel: GlooTunnel, credentials: Credentials) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gloo:
        port = gloo.getsockname()[1]
        tunnel.allow(port)
        with closing(GlooTunnel("127.0.0.1", credentials, 60, print)) as other:
            proxy = other.proxy(tunnel.address, port, port)
            with socket.create_connection(("127.0.0.1", proxy), 60) as caller:
                peer, _ = gloo.accept()
                with peer:
                    caller.sendall(b"up")
                    assert peer.recv(10) == b"up"
                    peer.sendall(b"down")
                    assert caller.recv(10) == b"down"
                assert caller.recv(10) == b""  # the end is passed on, too


def test_only_gloos_own_ports_can_be_reached(tunnel: GlooTunnel, credentials: Credentials) -> None:
    with socket.create_server(("127.0.0.1", 0)) as private:
        host, _, port = tunnel.address.rpartition(":")
        channel = connect((host, int(port)), credentials, b"gloo", timeout=60, limit=1 << 18)
        channel.send(private.getsockname()[1].to_bytes(2, "big"))
        with pytest.raises(EOFError):
            channel.receive()
        channel.close()


def test_who_has_no_certificate_is_refused(tunnel: GlooTunnel, credentials: Credentials) -> None:
    host, _, port = tunnel.address.rpartition(":")
    other = Credentials(credentials.secret, make_certificate())
    with pytest.raises(NotAuthentic):
        connect((host, int(port)), other, b"gloo", timeout=60, limit=1 << 18).receive()
