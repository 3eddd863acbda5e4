from __future__ import annotations

import socket

import pytest

from moe_dispatch.bench import network
from moe_dispatch.core.errors import LaunchError


def test_port_in_use_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {port} is in use") as caught:
            network.require_port(port, "127.0.0.1")
    assert "another port" in caught.value.fix
    network.require_port(port, "127.0.0.1")


def test_free_port_can_be_bound() -> None:
    network.require_port(network.free_port("127.0.0.1"), "127.0.0.1")


def test_loopback_is_reached_through_its_own_interface() -> None:
    name = network.interface_towards("127.0.0.1")
    assert name in {interface for _, interface in socket.if_nameindex()}
    assert network.address_towards("127.0.0.1") == "127.0.0.1"


def test_unknown_host_is_a_clear_error() -> None:
    with pytest.raises(LaunchError, match=r"no way to reach the rendezvous host nowhere\.invalid"):
        network.interface_towards("nowhere.invalid")
