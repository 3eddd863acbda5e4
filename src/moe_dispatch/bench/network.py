"""Ports and interfaces: what a launch needs to know about the network before it starts."""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from pathlib import Path

from moe_dispatch.core.errors import LaunchError

_SIOCGIFADDR = 0x8915


def free_port(host: str = "") -> int:
    """A TCP port that was free a moment ago; another process may take it before it is used."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def require_port(port: int, host: str = "") -> None:
    """Check that nothing listens on a port of this host.

    Raises:
        LaunchError: the port is in use or may not be bound; the message names it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be bound ({error.strerror})"
            raise LaunchError(
                f"port {port} {what} on {host or 'this host'}",
                "give another port, or stop the process that listens there; left out, a free port is chosen",
            ) from error


def require_interfaces(names: str) -> None:
    """Check that all interfaces of a GLOO_SOCKET_IFNAME exist on this host.

    Raises:
        LaunchError: one does not; the message lists those that do.
    """
    here = [name for _, name in socket.if_nameindex()]
    for name in names.split(","):
        if name not in here:
            raise LaunchError(
                f"GLOO_SOCKET_IFNAME={names}: this host has no network interface {name!r}",
                f"use one of: {', '.join(here)}; or unset it",
            )


def address_towards(host: str) -> str:
    """This host's IPv4 address on the way to `host` (no packet is sent).

    Raises:
        LaunchError: the name does not resolve or no route leads there.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LaunchError(
            f"no way to reach the rendezvous host {host}: {error.strerror or error}",
            "check the name and the routes of this node",
        ) from error


def interface_towards(host: str) -> str | None:
    """Name of the interface that reaches `host`; None when it cannot be told (then gloo decides by itself)."""
    address = address_towards(host)
    for _, name in socket.if_nameindex():
        if _address_of(name) == address:
            return name
    return _interface_of_route(host)


def _address_of(interface: str) -> str | None:
    import fcntl

    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _interface_of_route(host: str) -> str | None:
    """Longest matching prefix in /proc/net/route (addresses there are little-endian hexadecimal)."""
    try:
        target = int(ipaddress.IPv4Address(socket.gethostbyname(host)))
        rows = [line.split() for line in Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]]
    except OSError:
        return None
    best: tuple[int, str] | None = None
    for row in rows:
        network, mask = (int.from_bytes(bytes.fromhex(row[column])[::-1], "big") for column in (1, 7))
        if target & mask == network and (best is None or mask > best[0]):
            best = (mask, row[0])
    return best[1] if best else None
