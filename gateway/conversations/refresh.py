"""A conversation in memory takes over the state that another gateway has stored since.

What was derived from the bytes of its latest request here stays true: the next request begins with
the same bytes. That is the hash chain, the tail hash, the digests of its messages and the fold, as
far as the fold has read them with the same scores, answers and priors. So a call costs the messages
that came since, not the whole history. Everything that was decided is taken from the store.
"""

from __future__ import annotations

from gateway.conversations.conversation import Conversation, CurrentRun
from gateway.conversations.kept_fold import KeptFold
from gateway.steering.fold import ConversationFold


def can_refresh(known: Conversation, stored: Conversation) -> bool:
    """Whether the conversation in memory has read what its stored state continues from.

    Not while it has what is not stored, and not after a compaction: its history is another one. Not
    after a retry either: it may be under way, and would be saved over a state that is further.
    """
    return (
        known.history.chain is not None
        and known.run.start == stored.run.start
        and not known.busy
        and not known.history.branch.retries
        and not known.unsaved.steps
    )


def refresh(known: Conversation, stored: Conversation) -> None:
    """Give the conversation in memory the state of its stored version."""
    run = stored.run
    run.kept_fold = _kept_fold(known, run)
    run.priors = known.run.priors | run.priors
    known.run, known.unsaved = run, stored.unsaved
    known.unit, known.ancestors = stored.unit, stored.ancestors
    known.history.branch = stored.history.branch
    known.history.seen.join(stored.history.seen)


def _kept_fold(known: Conversation, stored: CurrentRun) -> KeptFold | None:
    run, chain = known.run, known.history.chain
    kept = run.kept_fold
    if run.fold is not None and chain is not None and chain.count == run.fold.consumed:
        kept = KeptFold(fold=run.fold, digest=chain.digest)
    return kept if kept is not None and _agrees(kept.fold, run, stored) else None


def _agrees(fold: ConversationFold, run: CurrentRun, stored: CurrentRun) -> bool:
    """Whether a new fold of the same messages would be equal to this one."""
    if run.judged != stored.judged and not _has_scores(fold, run, stored):
        return False
    read = fold.consumed
    answers = {count for count in run.answers if count <= read}
    if answers != {count for count in stored.answers if count <= read}:
        return False
    priors = stored.priors
    return all(each.prior == priors.get(each.index, each.prior) for each in fold.runs)


def _has_scores(fold: ConversationFold, run: CurrentRun, stored: CurrentRun) -> bool:
    """Whether all scores that a model gave since are of later steps.

    It is asked for the newest step only, and not again for one that it has scored.
    """
    newest = fold.current
    scored = not newest.steps or newest.score_key in run.judged
    return scored and run.judged.items() <= stored.judged.items()
