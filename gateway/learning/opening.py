"""Opens learning over the stores of a gateway."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config import Settings
from gateway.embedding.base import Embedder
from gateway.learning.book import LessonBook
from gateway.learning.secrets import has_secret
from gateway.learning.worker import Learner
from gateway.observability.logging import get_logger
from gateway.stores.learning import LearningStore
from gateway.stores.protocols import RunStore, StateStore


def open_learning(
    store: LearningStore,
    runs: RunStore,
    states: StateStore,
    embedder: Embedder | None,
    settings: Callable[[], Settings],
    lookup_failed: Callable[[Exception], None],
) -> tuple[LessonBook, Learner | None]:
    """The lessons that runs may be given, and what learns them.

    The second is None where no content is stored: then there is nothing to read, and whether a
    failure came again would never be known.
    """
    log = get_logger("gateway.learning")
    book = LessonBook(
        store,
        embedder,
        similarity=lambda: settings().learning.similarity,
        failed=lookup_failed,
    )
    if not settings().storage.store_content:
        if settings().learning.trials == "on":
            log.warning("nothing is learned: learning.trials needs storage.store_content")
        return book, None
    learner = Learner(
        store,
        runs,
        states,
        lambda: settings().learning,
        has_secret=has_secret,
        changed=book.forget,
        failed=lambda error: log.warning("runs not read", reason=str(error)),
    )
    return book, learner
