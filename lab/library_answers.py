"""Look-ups of a replay answered from a pattern library, as a gateway with these patterns would."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace

from gateway.auth.keys import DEFAULT_TENANT
from gateway.backends import Stores, open_stores
from gateway.config import Settings
from gateway.config.storage import StorageSettings
from gateway.core.guidance_choice import LessonMatch, LessonQuery
from gateway.core.pattern import Lesson, Query
from gateway.core.steer import Found
from gateway.embedding import open_embedder
from gateway.errors import ConfigError
from gateway.features.learning.lessons_in_memory import LessonBook
from gateway.library import PatternLibrary
from gateway.offline.playback import LookUps, ReplayPolicy
from gateway.offline.recordings import file_lines
from gateway.steering.guidance.codec import from_record
from gateway.stores.learning import Posterior

STARTER = "starter"  # names the library that ships, in place of a file


@contextmanager
def library_look_ups(patterns: str, policy: ReplayPolicy) -> Iterator[LookUps]:
    """A pattern library in memory; `patterns`: STARTER, or a file of `patterns export`, which may
    have the lines of `patterns export`. Raises ConfigError: it cannot be read, or a line is no
    pattern."""
    embedding, etraces = (policy.models or Settings()).embedding, policy.rules.etraces
    starter = patterns == STARTER
    lines = [] if starter else file_lines(Path(patterns))
    with _background_loop() as wait:
        stores = wait(open_stores(StorageSettings(path=":memory:"), vectors=True))
        try:
            embedder = wait(open_embedder(embedding))
            opening = PatternLibrary(stores.patterns, embedder, etraces).prepare(starter=starter)
            library = wait(opening)
            wait(_import(stores, library, patterns, lines))

            def fail(error: Exception) -> None:
                raise error

            book = LessonBook(stores.learning, failed=fail)

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


async def _import(
    stores: Stores, library: PatternLibrary, patterns: str, lines: Sequence[bytes]
) -> None:
    """Add the lines' patterns to the library; their lessons are stored as those of the replay's
    tenant, each to be given as often as its line says."""
    lessons, others = [], []
    for number, line in enumerate(lines, start=1):
        if b'"lesson"' not in line:
            others.append(line)
            continue
        try:
            record = orjson.loads(line)
            lesson = msgspec.convert(record.pop("lesson"), Lesson)
            found = from_record(record, tenant=DEFAULT_TENANT)
            lessons.append(replace(found, tenant=DEFAULT_TENANT, lesson=lesson))
        except (KeyError, ValueError, msgspec.ValidationError) as exc:
            raise ConfigError(f"{patterns}: line {number}: {exc}") from exc
    try:
        await library.import_lines(others, DEFAULT_TENANT)
    except ValueError as exc:
        raise ConfigError(f"{patterns}: {exc}") from exc
    await stores.learning.learn([(pattern, ()) for pattern in lessons])
    for pattern in lessons:
        if pattern.lesson is not None:
            share = Posterior(share=pattern.lesson.share)
            own = (pattern.tenant, pattern.pattern_id, pattern.lesson.version)
            await stores.learning.put_posterior(*own, share, 0.0)
