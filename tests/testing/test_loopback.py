"""A server byte by byte: what it reads, and that its threads end with their connections."""

from __future__ import annotations

import socket
import threading

import pytest

from steering_gateway_testing import LoopbackServer
from steering_gateway_testing.loopback import read_request
from steering_gateway_testing.patience import ANSWER_S

CHUNKED = b"POST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"


class Reading(LoopbackServer):
    """Keeps what it reads, and answers each request with one byte."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, bytes]] = []
        self.ended = threading.Event()
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        """Read until the client goes."""
        try:
            while True:
                self.requests.append(read_request(connection))
                connection.sendall(b"+")
        finally:
            self.ended.set()


@pytest.mark.parametrize("more", [b"", b"GET", b"GET / HTTP/1.1\r\n", CHUNKED[:-3]])
def test_a_client_that_goes_ends_the_thread(more: bytes) -> None:
    """Between requests and within one, whose part is no request."""
    with Reading() as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            for request in (b"GET /a HTTP/1.1\r\n\r\n", CHUNKED):
                client.sendall(request)
                assert client.recv(1) == b"+"
            client.sendall(more)
        assert server.ended.wait(ANSWER_S)
    assert [head.split(b" ")[1] for head, _ in server.requests] == [b"/a", b"/b"]
    assert [body for _, body in server.requests] == [b"", b"2\r\nhi\r\n0\r\n\r\n"]


def test_the_end_of_the_server_ends_its_connections() -> None:
    """A client that waits hears of it."""
    with Reading() as server:
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(CHUNKED)
        assert client.recv(1) == b"+"
    with client:
        assert client.recv(1) == b""
