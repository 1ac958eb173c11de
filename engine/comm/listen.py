"""Open the socket at which ranks will meet; torch-free, so that the driver can do it."""

import errno
import socket

from engine.errors import MissingError


def listening_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. MissingError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(4096)
    except OSError as error:
        made.close()
        reason = error.strerror or error
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise MissingError(
                f"train.host = {host}: not an address of this machine: {reason}",
                remedy="set train.host to an address of this machine, e.g. 127.0.0.1",
            ) from error
        raise MissingError(
            f"train.port = {port}: cannot listen on {host}:{port}: {reason}",
            remedy="set train.port = 0 to take a free port, or end the program that holds it",
        ) from error
    made.set_inheritable(True)
    return made
