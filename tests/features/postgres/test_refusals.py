"""PostgreSQL: options of the URL that do not work are said in one line, and not waited for."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.stores.protocols import StoreUnavailable, StoreUnreachable
from steering_gateway_testing.loopback import listening
from steering_gateway_testing.processes import GatewayProcess
from steering_gateway_testing.store_conformance.keys import a_key, kept_keys
from steering_gateway_testing.tls import Authority
from tests.postgres import empty_database, shared_server


@asynccontextmanager
async def server(tls: ssl.SSLContext | None) -> AsyncIterator[str]:
    """The address of what answers a client's wish for TLS as PostgreSQL does, and nothing else."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readexactly(8)
            writer.write(b"N" if tls is None else b"S")
            await writer.drain()
            if tls is not None:
                await writer.start_tls(tls)
                await reader.read()
        writer.close()

    async with listening(serve) as port:
        yield f"postgresql://guest:secret@127.0.0.1:{port}/name"


async def refusal_of(url: str) -> str:
    """What is said of a URL with which nothing can be opened."""
    with pytest.raises(StoreUnavailable) as caught:
        await open_stores(StorageSettings(url=Secret(url)))
    assert not isinstance(caught.value, StoreUnreachable)
    text = str(caught.value)
    assert "\n" not in text
    assert "secret" not in text
    return text


async def test_an_option_that_nobody_knows() -> None:
    """Other drivers know options that this one sends to the server, which refuses them."""
    with empty_database() as url:
        text = await refusal_of(f"{url}&channel_binding=require")
    assert re.search(r"an option of the URL .* leave it out \(.*channel_binding", text)


async def test_a_server_without_tls() -> None:
    """It is not said that nobody answers."""
    async with server(None) as url:
        text = await refusal_of(f"{url}?sslmode=require")
    assert "the server offers no TLS, which sslmode demands" in text


async def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The option and the file are named."""
    missing = tmp_path / "authority.pem"
    async with server(None) as url:
        text = await refusal_of(f"{url}?sslmode=verify-full&sslrootcert={missing}")
    assert f"sslrootcert: '{missing}' cannot be read" in text


@pytest.mark.parametrize(
    ("names", "trusted", "reason"),
    [
        (("127.0.0.1",), "other", "certificate verify failed"),
        (("db.example",), "ours", "127.0.0.1"),
    ],
    ids=["authority", "name"],
)
async def test_a_certificate_that_is_not_accepted(
    tmp_path: Path, names: tuple[str, ...], trusted: str, reason: str
) -> None:
    """An authority that is not named, or another host's certificate."""
    authorities = {name: Authority(tmp_path, name) for name in ("ours", "other")}
    async with server(authorities["ours"].server(*names)) as url:
        file = authorities[trusted].file
        text = await refusal_of(f"{url}?sslmode=verify-full&sslrootcert={file}")
    assert "the server's certificate is not accepted; sslrootcert has to name" in text
    assert reason in text


@pytest.mark.parametrize("password", ["sec/ret", "sec@ret", "sec#ret"])
def test_a_password_with_characters_of_a_url(password: str) -> None:
    """How they are written is said; the password is not, nor is a part of it asked for as the name
    of a host."""
    with pytest.raises(ValueError, match=r"is not a URL; .* are %2F") as caught:
        StorageSettings(url=Secret(f"postgresql://guest:{password}@127.0.0.1/name"))
    assert "ret" not in str(caught.value)


def test_a_url_in_place_of_a_path() -> None:
    """It names no file, and its password is not repeated."""
    with pytest.raises(ValueError, match=r"path: is a URL; .* is storage\.url") as caught:
        StorageSettings(path="postgresql://guest:secret@127.0.0.1/name")
    assert "secret" not in str(caught.value)


async def test_several_hosts() -> None:
    """The first that answers is taken; where none does, all of them are named."""
    with empty_database() as url:
        folder = quote(str(shared_server().folder), safe="")
        several = f"postgresql://postgres@127.0.0.1:1,{folder}:5432{urlsplit(url).path}"
        stores = await open_stores(StorageSettings(url=Secret(several)))
        assert not await kept_keys(stores).list_keys()
        await stores.close()
    none = StorageSettings(url=Secret("postgresql://guest:secret@127.0.0.1:1,127.0.0.1:2/name"))
    with pytest.raises(StoreUnreachable, match=r"answers at 127\.0\.0\.1:1 or 127\.0\.0\.1:2"):
        await open_stores(none)


def test_a_start_that_fails_says_why_in_one_line(tmp_path: Path) -> None:
    """What is wrong, and nothing after it."""
    with empty_database() as url:
        wrong = url.replace("/test_", "/nowhere_")
        gateway = GatewayProcess(tmp_path, env={"GATEWAY_STORAGE__URL": wrong})
        gateway.start()
        try:
            assert gateway.end() == 1
        finally:
            gateway.process.kill()
            gateway.close()
    (line,) = gateway.lines
    assert "cannot start: " in line
    assert "does not exist on the server; create it" in line


SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(600); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE INSERT ON keys FOR EACH ROW EXECUTE FUNCTION slow();
"""


async def test_a_statement_that_takes_too_long() -> None:
    """A limit of the administrator's is not taken for a server that stops."""
    with empty_database() as url:
        name = urlsplit(url).path.strip("/")
        stores = await open_stores(StorageSettings(url=Secret(f"{url}&statement_timeout=2s")))
        shared_server().execute(SLOW, name)
        try:
            with pytest.raises(StoreUnreachable, match=r"does not answer in time \(canceling"):
                await kept_keys(stores).add_key(a_key("k1"))
        finally:
            shared_server().execute("DROP FUNCTION slow CASCADE", name)
            await stores.close()
