"""Open the socket at which ranks will meet; torch-free, so that the driver can do it."""

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
        raise MissingError(
            f"train.port = {port}: cannot listen on {host}:{port}: {error.strerror or error}",
            remedy="set train.port = 0 to take a free port, or end the program that holds it",
        ) from error
    made.set_inheritable(True)
    return made
