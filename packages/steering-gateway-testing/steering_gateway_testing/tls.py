"""An upstream that speaks TLS, with certificates made for the test, scripted byte by byte."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from steering_gateway_testing import LoopbackServer
from steering_gateway_testing.loopback import read_request

_DAY = datetime.timedelta(days=1)

Answering = Callable[["Heard"], None]
"""Answers one request on its connection."""


class Authority:
    """Signs certificates; `file` is what a client has to trust."""

    def __init__(self, folder: Path, name: str) -> None:
        self._signer = trustme.CA(organization_name=name)
        self.file = folder / f"{name}.pem"
        self._signer.cert_pem.write_to_path(str(self.file))

    def server(self, *names: str, expired: bool = False) -> ssl.SSLContext:
        """The context of a server with a certificate for these hosts."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._issued(names, -_DAY if expired else _DAY).configure_cert(context)
        return context

    def server_file(self, name: str) -> Path:
        """A file with the key and the certificate of a server with this host."""
        path = self.file.with_name(f"{name}.pem")
        self._issued((name,), _DAY).private_key_and_cert_chain_pem.write_to_path(str(path))
        return path

    def _issued(self, names: Sequence[str], lasts: datetime.timedelta) -> trustme.LeafCert:
        until = datetime.datetime.now(datetime.UTC) + lasts
        return self._signer.issue_cert(*names, not_before=until - 10 * _DAY, not_after=until)

    def server_without_key_identifier(self, name: str) -> ssl.SSLContext:
        """The context of a server whose certificate has no Authority Key Identifier, as many that
        companies issue for themselves."""
        signer = x509.load_pem_x509_certificate(self._signer.cert_pem.bytes())
        signing = self._signer.private_key_pem.bytes()
        signing_key = serialization.load_pem_private_key(signing, password=None)
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            issuer_name=signer.subject,
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - _DAY,
            not_valid_after=now + _DAY,
        )
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = builder.add_extension(names, critical=False)
        assert isinstance(signing_key, ec.EllipticCurvePrivateKey)
        signed = builder.sign(signing_key, hashes.SHA256())
        chain = self.file.with_name(f"{name}-without-identifier.pem")
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        chain.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        return context


class Heard:
    """One request, and the connection on which it is answered."""

    def __init__(self, head: bytes, body: bytes, connection: ssl.SSLSocket) -> None:
        self.head = head
        self.body = body
        self._connection = connection

    def send(self, *pieces: bytes) -> None:
        """Send pieces, each in records of its own."""
        for piece in pieces:
            self._connection.sendall(piece)

    def cut(self) -> None:
        """Close the connection below TLS: no close_notify says that this is the end."""
        plain = self._connection.detach()
        with socket.socket(fileno=plain) as raw:
            raw.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Say that no more comes (close_notify), and close."""
        with contextlib.suppress(OSError):
            self._connection.unwrap()
        self._connection.close()


class TLSUpstream(LoopbackServer):
    """Serves on a port of loopback between `with` and its end.

    `hellos`: the host name that each connection asked for, `opened`: their number; `requests`: all
    that were read.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.answers: list[Answering] = []
        self.requests: list[Heard] = []
        self.hellos: list[str | None] = []
        self._context = context
        context.sni_callback = self._note_name
        super().__init__()

    @property
    def opened(self) -> int:
        """Connections whose handshake began."""
        return len(self.hellos)

    def script(self, answers: Sequence[Answering]) -> None:
        """Answer the next requests so, and forget what was seen."""
        self.answers[:] = answers
        self.requests.clear()
        self.hellos.clear()

    def serve(self, connection: socket.socket) -> None:
        """Answer by the script, over TLS."""
        secure = self._context.wrap_socket(connection, server_side=True)
        self._open.add(secure)
        while True:
            heard = Heard(*read_request(secure), secure)
            self.requests.append(heard)
            self.answers.pop(0)(heard)

    def _note_name(self, _tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        self.hellos.append(name)
