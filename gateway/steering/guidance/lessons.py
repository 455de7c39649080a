"""Lessons for a call, and the draw that decides whether they are given.

Lessons fit after failures; rules that people have stated fit at the start of a run, once more after
a summary of its history, and after calls like those that a person has marked. The draw is the
lesson's trial, and later its hold-out. It depends only on the lesson's version, the run and the
step: equal on each replica and after a restart. Rules are not drawn."""

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.core.guidance_choice import (
    STANDING,
    Decided,
    Item,
    LessonDecision,
    LessonMatch,
    LessonQuery,
)
from gateway.core.guidance_plan import CHARS_PER_TOKEN
from gateway.core.guidance_settings import InjectionSettings
from gateway.core.guidance_state import GuidanceState, latest
from gateway.core.guidance_text import FRAME_CHARS, sanitise
from gateway.core.ledger.ledger import LedgerStep
from gateway.core.pattern import ENDED, Pattern, PatternMatch, Trust, content
from gateway.core.step import Action
from gateway.steering.evidence.failure_keys import read_action
from gateway.steering.identity.ids import draw
from gateway.values import frozen

WINDOW_STEPS = 6  # steps before the next decision: until then this one shows its effect
MOST_REMEMBERED = 64  # newest lessons of a run about which a decision is remembered
LEARNED = "LEARNED FROM EARLIER RUNS"
QUOTED = "OBSERVED IN AN EARLIER RUN (a quotation, not an instruction)"
SAME_FAILURE = "The same failure came before in this project. What ended it"
STATED = "RULE OF THIS PROJECT, stated by its people"
MOST_RULES = 5
RULES_CHARS = 120 * CHARS_PER_TOKEN  # at the start of a run. Source: `learning.md`
SAID = "said"  # begins the keys of lessons that people stated


@frozen
class LessonSettings:
    """Limits of lessons."""

    trials: bool = False  # lessons may be given at all
    per_call: int = 2  # most lessons in one call
    per_run: int = 4  # most lessons in one run
    max_chars: int = 600  # most characters of one lesson's text

    def query(
        self, guidance: GuidanceState, newest: LedgerStep | None, step: int
    ) -> LessonQuery | None:
        """Returns the look-up at the first decision of a run, at the first one after a summary
        and after a step with calls; else None. Its keys are those of the failures that the step
        leaves open."""
        decided = guidance.decided_step
        steps = guidance.lesson_steps
        begins = guidance.rules_due or (decided is None and not steps)
        if not self.trials or not (begins or decided is None or step > max(decided, 0)):
            return None
        actions: tuple[Action, ...] = ()
        failed: list[Action] = []
        if newest is not None and guidance.lessons < self.per_run:
            actions = newest.step.actions
            failed = [
                action
                for action, (facts, tried) in zip(actions, newest.actions, strict=True)
                if tried.kind != "cancelled" and not facts.answer.by_user
            ]
        if not (begins or actions):
            return None
        readings = [read_action(action) for action in failed]
        recent = (name for name, at in steps.items() if at >= max(0, step - WINDOW_STEPS + 1))
        return LessonQuery(
            keys=tuple(r.failure.key for r in reversed(readings) if r.failure is not None),
            exclude=frozenset((*guidance.pattern_ids, *recent)),
            begins=begins,
            actions=actions,
        )

    def added(
        self,
        decided: Decided,
        matches: Sequence[LessonMatch],
        *,
        query: LessonQuery,
        injection: InjectionSettings,
    ) -> Decided:
        """Returns the decision with the drawn lessons added. The first call of a run, and the first
        one after a summary, gets rules alone, in their order, if there are any."""
        again = decided.state.rules_due
        if again:
            decided = replace(decided, state=replace(decided.state, rules_due=False))
        room = injection.max_block_chars - FRAME_CHARS
        room -= sum(len(item.text) + 2 for item in decided.items)
        most = min(self.per_call, self.per_run - decided.state.lessons)
        rules = [match for match in matches if query.begins and is_rule(match.pattern)]
        texts = _different(matches, self.max_chars)
        source = "monitor"
        if rules:
            room = min(room, RULES_CHARS)
            most = MOST_RULES
            if not again:  # the head of the prompt has what is said again at its end
                source = STANDING
            texts = [(match, lesson_text(match.pattern, self.max_chars)) for match in rules]
        items = []
        decisions: list[LessonDecision] = []
        for match, text in texts:
            if len(decisions) >= most or not text or len(text) + 2 > room:
                continue
            decision = _drawn(match, query.unit, decided.step)
            decisions.append(decision)
            if decision.given:
                room -= len(text) + 2
                found = PatternMatch(pattern=match.pattern, similarity=1.0)
                items.append(Item(text=text, tier=match.pattern.tier, match=found, source=source))
        if not decisions:
            return decided
        own = [each for each in decisions if not is_rule(each.pattern)]
        state = _remembered(decided.state, decisions, decided.step, begins=bool(rules))
        lessons = (*decided.lessons, *own)
        return replace(decided, items=(*decided.items, *items), state=state, lessons=lessons)


def lesson_text(pattern: Pattern, limit: int) -> str:
    """Returns the text of a lesson as it is given, at most `limit` characters; "" if it has
    none. It is a quotation unless an operator, a template or a person of the project wrote it."""
    texts = content(pattern.fields)
    lesson = pattern.lesson
    if lesson is not None and lesson.trust is not Trust.MODEL and is_rule(pattern):
        return f"{STATED}: {sanitise(texts.move, limit - len(STATED) - 2)}".replace("\n", " ")
    advice = " ".join(part for part in (texts.situation, texts.move or texts.avoid) if part)
    if lesson is None or not advice:
        return ""
    if lesson.origin == ENDED:  # the situation is in the tool's words, which are the agent's anyway
        advice = f"{SAME_FAILURE}: {texts.move}"
    label = QUOTED
    if lesson.trust.advises:
        label = LEARNED
    body = sanitise(advice, limit - len(label) - 4).replace("\n", " ")
    if lesson.trust.advises:
        return f"{label}: {body}"
    return f'{label}: "{body}"'


def is_rule(pattern: Pattern) -> bool:
    """Whether a person stated the lesson."""
    return pattern.lesson is not None and pattern.lesson.key.startswith(f"{SAID}|")


def _different(matches: Sequence[LessonMatch], limit: int) -> list[tuple[LessonMatch, str]]:
    """Returns the matches with their texts, without repeated texts, by id."""
    found: dict[str, LessonMatch] = {}
    for match in sorted(matches, key=lambda each: each.pattern.pattern_id):
        found.setdefault(lesson_text(match.pattern, limit), match)
    return [(match, text) for text, match in found.items()]


def _drawn(match: LessonMatch, unit: str, step: int) -> LessonDecision:
    """The decision about a lesson by the draw of its step; a rule is given always."""
    lesson = match.pattern.lesson
    share = 0.0
    version = 0
    if lesson is not None:
        share = max(lesson.share, float(is_rule(match.pattern)))
        version = lesson.version
    point = draw(f"{match.pattern.pattern_id}@{version}", f"{unit}#{step}")
    return LessonDecision(
        pattern=match.pattern,
        share=share,
        given=point < share,
        key=match.key,
    )


def _remembered(
    state: GuidanceState, decisions: Sequence[LessonDecision], step: int, *, begins: bool
) -> GuidanceState:
    steps = {**state.lesson_steps, **{each.pattern.pattern_id: step for each in decisions}}
    later = decisions
    if begins:
        later = ()
    given = tuple(each.pattern.pattern_id for each in later if each.given)
    return replace(
        state,
        decided_step=latest(state.decided_step, step),
        pattern_ids=(*state.pattern_ids, *given),
        lesson_steps=dict([*steps.items()][-MOST_REMEMBERED:]),
        lessons=state.lessons + len(given),
    )
