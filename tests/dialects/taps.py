"""A tap in a line: it passes bytes on as they come and tells afterwards what they were."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

import h11


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """One request and its answer; bodies without their transfer coding."""

    method: str
    target: str
    request: bytes
    status: int
    answer: bytes


class Tap:
    """Listens on a loopback port and passes every connection on to another one."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lines: list[tuple[bytearray, bytearray]] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._open: list[socket.socket] = []

    def __enter__(self) -> Tap:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join()

    def exchanges(self) -> list[Exchanged]:
        """What went over all lines so far, line by line."""
        return [each for line in list(self._lines) for each in _read(*map(bytes, line))]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += [near, far]
                said, answered = bytearray(), bytearray()
                self._lines.append((said, answered))
                for ends in ((near, far, said), (far, near, answered)):
                    thread = threading.Thread(target=_pass_on, args=ends)
                    self._threads.append(thread)
                    thread.start()


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
