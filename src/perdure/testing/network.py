"""no_network: inside it, a connection to anything but this machine is an error instead of a surprise."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from perdure.core.errors import UsageError


@contextmanager
def no_network() -> Generator[None]:
    """Refuses connections that leave the loopback, for the time of a test."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def guarded_connect(self: socket.socket, address: Any) -> None:
        _check(self, address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        _check(self, address)
        return connect_ex(self, address)

    socket.socket.connect, socket.socket.connect_ex = guarded_connect, guarded_connect_ex
    try:
        yield
    finally:
        socket.socket.connect, socket.socket.connect_ex = connect, connect_ex


def _check(sock: socket.socket, address: Any) -> None:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    host = str(address[0])
    if host != "localhost" and not (_is_address(host) and ip_address(host).is_loopback):
        raise UsageError(f"A connection to {host} was tried inside no_network(); script what it would answer.")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
