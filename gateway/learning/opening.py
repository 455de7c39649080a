"""Opens learning over the stores of a gateway."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.backends import Stores
from gateway.config import Settings
from gateway.embedding.base import Embedder
from gateway.learning.book import LessonBook
from gateway.learning.distiller import Distiller
from gateway.learning.paid_model import ModelServices, PaidModel
from gateway.learning.secrets import has_secret
from gateway.learning.worker import Learner
from gateway.observability.logging import get_logger
from gateway.observability.metrics import Metrics
from gateway.stores.guarded import GuardedStateStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """The lessons that runs may be given, what learns them, and what asks a model about runs.

    The last two are None where no content is stored: then there is nothing to read, and whether a
    failure came again would never be known.
    """

    book: LessonBook
    learner: Learner | None
    distiller: Distiller | None

    def loops(self) -> Iterator[tuple[Coroutine[Any, Any, None], str]]:
        """What has to run in the background, and its name."""
        if self.learner is not None:
            yield self.learner.follow(), "learning"
        if self.distiller is not None:
            yield self.distiller.follow(), "distilling"


class Host(Protocol):
    """What of a gateway learning needs: settings and services change with a reload."""

    settings: Settings
    metrics: Metrics

    @property
    def services(self) -> ModelServices: ...

    @property
    def store(self) -> GuardedStateStore: ...

    def degraded(self) -> object | None: ...


def open_learning(
    host: Host,
    stores: Stores,
    embedder: Embedder | None,
    lookup_failed: Callable[[Exception], None],
) -> Learning:
    """Learning over the stores of a gateway."""
    log = get_logger("gateway.learning")
    book = LessonBook(
        stores.learning,
        embedder,
        similarity=lambda: host.settings.learning.similarity,
        failed=lookup_failed,
        read=host.store.read_beside,
    )
    if not host.settings.storage.store_content:
        if host.settings.learning.trials == "on":
            log.warning("nothing is learned: learning.trials needs storage.store_content")
        return Learning(book=book, learner=None, distiller=None)
    learner = Learner(
        stores.learning,
        stores.runs,
        host.store,
        lambda: host.settings.learning,
        has_secret=has_secret,
        embedder=embedder,
        changed=book.forget,
        failed=lambda error: log.warning("runs not read", reason=str(error)),
        behind=lambda: host.degraded() is not None,
        config_tenants=lambda: frozenset(host.settings.auth.gateway_keys.values()),
    )
    distiller = Distiller(
        stores.learning,
        stores.runs,
        PaidModel(lambda: host.services, host.metrics),
        lambda: host.settings.learning,
        has_secret=has_secret,
        counted=lambda result: host.metrics.distillations.labels(result).inc(),
    )
    return Learning(book=book, learner=learner, distiller=distiller)
