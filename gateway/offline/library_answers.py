"""Look-ups of a replay answered from a pattern library, as a gateway with these patterns would."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from gateway.auth.keyring import DEFAULT_TENANT
from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.embedding import EmbeddingSettings, open_embedder
from gateway.errors import ConfigError
from gateway.learning.book import LessonBook
from gateway.library import PatternLibrary
from gateway.offline.replayed_calls import LookUps
from gateway.steering.guidance.codec import from_record
from gateway.steering.guidance.lessons import LessonMatch, LessonQuery
from gateway.steering.guidance.pattern import Pattern, Query
from gateway.steering.guidance.settings import EtraceSettings
from gateway.steering.steer import Found
from gateway.stores.learning import Posterior

STARTER = "starter"
"""Names the library that ships, in place of a file."""


@contextmanager
def library_look_ups(
    embedding: EmbeddingSettings, etraces: EtraceSettings, patterns: str, similarity: float = 1.0
) -> Iterator[LookUps]:
    """A pattern library in memory; `patterns`: STARTER, or a JSONL file of `patterns export`, which
    may have the lines of `learn export` too.

    Raises:
        ConfigError: the file cannot be read, or has a line that is no pattern.
    """
    lines = None if patterns == STARTER else _read(Path(patterns))
    with _background_loop() as wait:
        stores = wait(open_stores(StorageSettings(path=":memory:"), vectors=True))
        try:
            lessons, others = _sorted(patterns, lines)
            library = wait(_open(stores, embedding, etraces, patterns, others))
            wait(_learn(stores, lessons))
            book = LessonBook(
                stores.learning, library.embedder, similarity=lambda: similarity, failed=_raise
            )

            def look_up(queries: Sequence[Query]) -> Found:
                return wait(library.look_up_all(queries, DEFAULT_TENANT)) if queries else {}

            def find(query: LessonQuery) -> Sequence[LessonMatch]:
                return wait(book.find(query, DEFAULT_TENANT))  # type: ignore[no-any-return]

            yield LookUps(look_up=look_up, gates=library.gates, lessons=find)
        finally:
            wait(stores.close())


@contextmanager
def _background_loop() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Runs coroutines in a separate thread, for callers inside and outside of another loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _open(
    stores: Stores,
    embedding: EmbeddingSettings,
    etraces: EtraceSettings,
    patterns: str,
    lines: Sequence[bytes] | None,
) -> PatternLibrary:
    embedder = await open_embedder(embedding)
    starter = lines is None
    library = await PatternLibrary.open(stores.patterns, embedder, etraces, starter=starter)
    try:
        await library.import_lines(lines or (), DEFAULT_TENANT)
    except ValueError as exc:
        raise ConfigError(f"{patterns}: {exc}") from exc
    return library


async def _learn(stores: Stores, lessons: Sequence[Pattern]) -> None:
    """Store lessons, each to be given as often as its line says."""
    await stores.learning.learn([(pattern, ()) for pattern in lessons])
    for pattern in lessons:
        if pattern.lesson is not None:
            share = Posterior(share=pattern.lesson.share)
            own = (pattern.tenant, pattern.pattern_id, pattern.lesson.version)
            await stores.learning.put_posterior(*own, share, 0.0)


def _sorted(
    patterns: str, lines: Sequence[bytes] | None
) -> tuple[list[Pattern], Sequence[bytes] | None]:
    """The lessons among the lines, as those of the replay's tenant, and the other lines."""
    if lines is None:
        return [], None
    lessons, others = [], []
    for number, line in enumerate(lines, start=1):
        if b'"lesson"' not in line:
            others.append(line)
            continue
        try:
            record = orjson.loads(line)
            lessons.append(from_record(record, tenant=DEFAULT_TENANT, lessons=True))
        except ValueError as exc:
            raise ConfigError(f"{patterns}: line {number}: {exc}") from exc
    return lessons, others


def _raise(error: Exception) -> None:
    raise error


def _read(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().split(b"\n")
    except OSError as exc:
        raise ConfigError(f"{file}: cannot be read: {exc.strerror}") from exc
