"""Addresses, ports, and whether somebody answers there who is who they should be."""

import re
import socket
import ssl
from pathlib import Path

from partita.errors import EngineError, InputError


def split_address(address: str) -> tuple[str, int]:
    """Host and port of host:port."""
    found = re.fullmatch(r"([A-Za-z0-9.-]+):([0-9]{1,5})", address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise InputError(f"address: expected host:port, a name or an IPv4 address, got {address!r}")
    return found[1], int(found[2])


def check_port(address: str) -> None:
    """Check that this process may listen at an address."""
    host, port = split_address(address)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InputError(f"address {address}: {error.strerror}: change [server] address") from None


def find_free_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_server_up(address: str, certificate: Path) -> bool:
    """Whether a server answers there; an error, if it is not the one that the certificate speaks for."""
    host, port = split_address(address)
    try:
        context = ssl.create_default_context(cafile=str(certificate))
    except (OSError, ValueError) as error:
        raise InputError(f"{certificate}: is no certificate ({error})") from None
    try:
        with socket.create_connection((host, port), 5) as plain, context.wrap_socket(plain, server_hostname=host):
            return True
    except ssl.SSLCertVerificationError as error:
        raise EngineError(
            f"{certificate} does not speak for the server at {address} ({error.verify_message}): "
            "ask whoever runs it for the federation's ca.crt"
        ) from None
    except OSError:
        return False
