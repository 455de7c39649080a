"""A tap in a line: it passes bytes on as they come and tells afterwards what they were."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

import h11

from steering_gateway_testing import LoopbackServer
from steering_gateway_testing.ports import LOOPBACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """One request and its answer; bodies without their transfer coding."""

    method: str
    target: str
    request: bytes
    status: int
    answer: bytes


class Tap(LoopbackServer):
    """Passes every connection on to another port."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._lines: list[tuple[bytearray, bytearray]] = []
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        """Pass on what is said and what is answered, until both have ended."""
        said = bytearray()
        answered = bytearray()
        self._lines.append((said, answered))
        with socket.create_connection((LOOPBACK, self._to)) as far:
            self._open.add(far)
            back = threading.Thread(target=_pass_on, args=(far, connection, answered))
            back.start()
            _pass_on(connection, far, said)
            back.join()

    def exchanges(self) -> list[Exchanged]:
        """What went over all lines so far, line by line."""
        return [each for line in list(self._lines) for each in _read(*map(bytes, line))]


def _pass_on(source: socket.socket, sink: socket.socket, seen: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            seen += data
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _read(said: bytes, answered: bytes) -> list[Exchanged]:
    """The exchanges on one line; one that did not end is left out."""
    server, client = h11.Connection(h11.SERVER), h11.Connection(h11.CLIENT)
    server.receive_data(said)
    client.receive_data(answered)
    found = []
    while isinstance(asked := server.next_event(), h11.Request):
        client.send(asked)
        request = _body(server)
        if request is None:
            break
        _repeat(client, request)
        if not isinstance(head := client.next_event(), h11.Response):
            break
        answer = _body(client)
        if answer is None:
            break
        exchanged = Exchanged(
            method=asked.method.decode(),
            target=asked.target.decode(),
            request=request,
            status=head.status_code,
            answer=answer,
        )
        found.append(exchanged)
        if client.our_state is not h11.DONE or client.their_state is not h11.DONE:
            break
        client.start_next_cycle()
        server.send(head)
        _repeat(server, answer)
        server.start_next_cycle()
    return found


def _repeat(connection: h11.Connection, body: bytes) -> None:
    if body:
        connection.send(h11.Data(data=body))
    connection.send(h11.EndOfMessage())


def _body(connection: h11.Connection) -> bytes | None:
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += bytes(event.data)
    return body if isinstance(event, h11.EndOfMessage) else None
