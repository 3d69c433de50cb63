"""Reads ``HOST:PORT`` and resolves host names."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any, Tuple, Union

from gopccl._errors import ArgumentError

IP = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


def parse(address: str, what: str) -> Tuple[IP, int]:
    """Split ``1.2.3.4:48148``, ``[::1]:48148`` or ``name:48148`` and resolve the name.

    A name with several addresses gives its first IPv4 address, else its first IPv6 one.
    """
    host, colon, port_text = address.rpartition(":")
    if not colon:
        raise ArgumentError(f"{what} is {address!r}, must be HOST:PORT")
    if not port_text.isdigit() or int(port_text) > 65535:
        raise ArgumentError(f"{what} is {address!r}: {port_text!r} is not a port (0 to 65535)")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ArgumentError(f"{what} is {address!r}: write an IPv6 address in brackets, [{host}]:{port_text}")
    try:
        return ipaddress.ip_address(host), int(port_text)
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, int(port_text), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as err:
        raise ArgumentError(f"{what} is {address!r}: cannot resolve {host!r}: {err}") from None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return ipaddress.ip_address(str(found[0][4][0]).split("%")[0]), int(port_text)


def fill(c: Any, ip: IP, port: int) -> None:
    """Write an address into a C ``ccoip_socket_address_t``."""
    c.port = port
    if isinstance(ip, ipaddress.IPv4Address):
        c.inet.protocol = 0
        c.inet.ipv4.data = list(ip.packed)
    else:
        c.inet.protocol = 1
        c.inet.ipv6.data = list(ip.packed)
