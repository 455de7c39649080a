"""Selects the guidance for a call and updates the run's allowances."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any, Protocol

from msgspec.structs import replace

from gateway.core.guidance_plan import Plan
from gateway.core.guidance_settings import InjectionSettings
from gateway.core.guidance_state import GuidanceState
from gateway.core.guidance_text import (
    FRAME_CHARS,
    ModelFamily,
    Same,
    model_family,
    pattern_text,
)
from gateway.core.ledger.ledger import LedgerStep
from gateway.core.pattern import (
    ETrace,
    Pattern,
    PatternMatch,
    Query,
    Tier,
    causes,
    etrace_of,
    kinds,
)
from gateway.core.step import Action
from gateway.values import Value

STANDING = "standing"  # source of a rule that is given at the start of a run
Found = Mapping[Tier, Sequence[PatternMatch]]  # no entry for a tier whose look-up failed


class Item(Value):
    """One text of a block of guidance."""

    text: str  # as rendered for the routed model's family
    tier: Tier | None = None  # of its pattern; None for a text without a pattern
    # the pattern and its similarity; None for a text without a pattern
    match: PatternMatch | None = None
    failure_type: str | None = None  # label of the failure that it answers; None for any
    severity: int | None = None  # 1 to 3, of a monitor's text; None for others
    source: str = "monitor"  # who gave a text without a pattern, such as `monitor` or `skip`

    @property
    def label(self) -> str:
        """`tier:pattern id`, `monitor:failure type`, or the source."""
        if self.tier is None or self.match is None:
            return f"{self.source}:{self.failure_type}" if self.failure_type else self.source
        return f"{self.tier.value}:{self.match.pattern.pattern_id}"


class LessonDecision(Value):
    """One lesson that fitted a call, and whether it was given."""

    pattern: Pattern  # the lesson
    share: float  # probability with which it was to be given, in (0, 1]
    given: bool  # the result of the draw
    key: str  # of the failure that it fitted


class Decided(Value):
    """The guidance of one call, and the run's bookkeeping after it."""

    step: int  # newest scored step; FIRST_CALL before there is one
    state: GuidanceState  # the bookkeeping with this call's guidance counted
    items: tuple[Item, ...] = ()  # new texts, in the block's order
    directive: str = ""  # text that is sent with this call only; "" for none
    reasons: tuple[str, ...] = ()  # what was held back and why
    lessons: tuple[LessonDecision, ...] = ()  # the decisions about lessons, given or not
    candidates: tuple[ETrace, ...] = ()  # what the look-ups found, most similar first


class LessonQuery(Value):
    """The look-up among the lessons for one call."""

    keys: tuple[str, ...]  # of the run's failures, newest first
    exclude: frozenset[str]  # ids of lessons that are not wanted, because the run has them
    begins: bool = False  # the run's first call, or the first after a summary: rules are wanted
    unit: str = ""  # seed of the draws: the same one through the run
    actions: tuple[Action, ...] = ()  # the newest calls; empty before there are any
    # gives the messages before the agent's first answer
    opening: Callable[[], Sequence[Any]] = tuple
    # gives the tools that the request declares
    declared: Callable[[], Any] = tuple


class LessonMatch(Value):
    """A lesson that fits a call."""

    pattern: Pattern  # the lesson
    key: str  # of the failure that it fits


class Lessons(Protocol):
    """The lessons of earlier runs; `LessonSettings` in `gateway/steering/guidance/lessons.py`."""

    def query(
        self, guidance: GuidanceState, newest: LedgerStep | None, step: int
    ) -> LessonQuery | None:
        """The look-up at the first decision of a run, at the first one after a summary of its
        history, and after a step with calls; None for none. `newest`: the newest scored step,
        number `step`, as the ledger describes it."""

    def added(
        self,
        decided: Decided,
        matches: Sequence[LessonMatch],
        *,
        query: LessonQuery,
        injection: InjectionSettings,
    ) -> Decided:
        """The decision about a call with those of the lessons that are drawn. `matches`: what was
        found for `query`."""


def decide(
    guidance: GuidanceState, planned: Plan, found: Found, injection: InjectionSettings
) -> Decided:
    """The guidance of this call, from the answers to the plan's look-ups. `found` has no entry for
    a tier whose look-up failed: that, like an empty answer or texts that do not fit the block,
    spends no allowance."""
    room = injection.max_block_chars - FRAME_CHARS
    items = []
    for item in _items(planned, found, injection):
        needed = len(item.text) + len("\n\n")
        if needed <= room:
            room -= needed
            items.append(item)
    return Decided(
        step=planned.step,
        state=_spend(guidance, planned, items),
        items=tuple(items),
        directive=planned.directive,
        reasons=planned.reasons,
        candidates=_candidates(planned, found),
    )


def _candidates(planned: Plan, found: Found) -> tuple[ETrace, ...]:
    """The e1 and e2 patterns above the recall threshold, those that may not be given included, and
    the universal rules for this agent; the most similar first."""
    candidates = []
    for query in planned.queries:
        matches = found.get(query.tier, ())
        clearing = passing(query, matches)
        cleared = {match.pattern.pattern_id for match in clearing}
        listed = clearing if query.tier is Tier.E3 else matches
        candidates += [
            etrace_of(match, cleared=match.pattern.pattern_id in cleared)
            for match in listed
            if match.similarity >= query.floor
        ]
    return tuple(sorted(candidates, key=lambda each: (-each.similarity, each.pattern_id)))


def passing(query: Query, matches: Iterable[PatternMatch]) -> tuple[PatternMatch, ...]:
    """Returns the matches that may be injected: above floor and gate, not excluded, best first.
    A pattern's `gate_threshold` replaces the gate. Patterns for the query's cause need no
    similarity; while there are any, used or not, they replace all others. Universal rules come
    in the order of their ids, those for all agents first, then those for the query's kind."""
    unique = {match.pattern.pattern_id: match for match in matches}
    kept = [match for key, match in unique.items() if key not in query.exclude]
    if query.tier is Tier.E3:
        return _rules(query, kept)
    about = [m for m in unique.values() if query.cause and query.cause in causes(m.pattern)]
    if about:
        kept = [match for match in about if match.pattern.pattern_id not in query.exclude]
    else:
        kept = [match for match in kept if match.similarity >= _needed(query, match)]
    kept.sort(key=lambda match: (-match.similarity, match.pattern.pattern_id))
    near = [match for match in kept if match.similarity >= kept[0].similarity - query.margin]
    return tuple(near[: query.top_k])


def _rules(query: Query, found: Iterable[PatternMatch]) -> tuple[PatternMatch, ...]:
    fitting = []
    for match in found:
        named = kinds(match.pattern) if query.kind else ()
        if not named or query.kind in named:
            fitting.append((bool(named), match.pattern.pattern_id, match))
    fitting.sort(key=lambda each: each[:2])
    return tuple(match for *_, match in fitting[: query.top_k])


def _needed(query: Query, match: PatternMatch) -> float:
    own = match.pattern.gate_threshold
    return max(query.floor, query.gate if own is None else own)


def _items(planned: Plan, found: Found, injection: InjectionSettings) -> Iterator[Item]:
    """The texts that may be given, the most important first; none beside that of a hand-over."""
    if planned.hand_over:
        yield Item(text=planned.hand_over, source="hand_over")
        return
    if monitor := planned.monitor:
        yield Item(text=monitor.text, failure_type=monitor.failure_type, severity=monitor.severity)
    family = model_family(planned.model)
    by_tier = {query.tier: query for query in planned.queries}
    for tier in (Tier.E3, Tier.E1, Tier.E2):
        query = by_tier.get(tier)
        matches = found.get(tier, ())
        if query is not None and matches:
            make = _known_items if tier is Tier.E3 else _pattern_items
            items = make(Same(matches), query, family, injection.max_field_chars)
            if query.cause and planned.event and items:
                named = replace(items[0], text=f"{planned.event}\n{items[0].text}")
                items = (named, *items[1:])
            yield from items


def _pattern_items(
    matches: Same[Sequence[PatternMatch]], query: Query, family: ModelFamily, limit: int
) -> tuple[Item, ...]:
    found = []
    room = query.max_chars or inf
    for match in passing(query, matches.value):
        text = pattern_text(match.pattern, family, limit)
        if text and len(text) <= room:
            room -= len(text) + len("\n\n")
            failure_type = match.pattern.failure_type
            item = Item(text=text, tier=query.tier, match=match, failure_type=failure_type)
            found.append(item)
    return tuple(found)


# Every run begins with the same universal rules, which the library gives as the same list.
_known_items = lru_cache(maxsize=64)(_pattern_items)


def _spend(guidance: GuidanceState, planned: Plan, items: Sequence[Item]) -> GuidanceState:
    decided = planned.step
    if guidance.decided_step is not None:
        decided = max(guidance.decided_step, decided)
    if not items and decided == guidance.decided_step:
        return guidance
    tiers = {item.tier for item in items}
    searched = [item.match for item in items if item.match and item.tier is not Tier.E3]
    state = replace(
        guidance,
        decided_step=decided,
        e1_count=guidance.e1_count + (Tier.E1 in tiers),
        e3_done=guidance.e3_done or Tier.E3 in tiers,
        pattern_ids=(*guidance.pattern_ids, *(match.pattern.pattern_id for match in searched)),
    )
    if Tier.E2 in tiers:
        spent = state.e2_counts.get(planned.failure_type, 0) + 1
        state = replace(state, e2_counts={**state.e2_counts, planned.failure_type: spent})
    if (sent := planned.monitor) and None in tiers and not planned.hand_over:
        given = {sent.subject: sent.severity, sent.failure_type: sent.severity}
        state = replace(
            state,
            monitor_count=state.monitor_count + 1,
            monitor_step=planned.step,
            severities={**state.severities, **given},
        )
    return state
