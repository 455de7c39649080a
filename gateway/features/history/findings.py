"""Lines below the sums of `gateway history`: what was paid again, where time went, how sessions
ended, and the limit that would have capped the dearest ones."""

import math
from collections.abc import Iterator, Mapping, Sequence

from gateway.features.history.reading import SessionReading
from gateway.features.history.session import AWAY_S
from gateway.features.history.summary import Summary
from gateway.text.formatting import count, counted, money, percent, seconds

_WORTH = 0.01  # share of all dollars, or of all input, from which a loss is reported
_SAVES = 0.05  # share of all dollars that a limit has to save
_LETS = 0.95  # share of sessions that a limit lets through
_STEPS = (1.0, 2.0, 3.0, 5.0, 7.5)  # figures that a limit is rounded up to, times a power of ten
_WHO = {"model": "the model", "tool": "tools", "person": "waiting for you"}
_ENDS = {
    "answered": "with an answer",
    "in a call": "in the middle of a call",
    "interrupted": "interrupted",
    "rejected": "at a call that you rejected",
    "unanswered": "without an answer to the last message",
}


def finding_lines(summary: Summary) -> Iterator[str]:
    """The findings, one line each; one whose figures are too small says that there is nothing."""
    yield _again(summary)
    if summary.lost.changing:
        yield _changing(summary.lost.changing)
    yield _time(summary.ends.spent)
    yield _ends(summary)


def _again(summary: Summary) -> str:
    found = summary.lost.causes
    usd = sum(each.usd for each in found.values())
    tokens = sum(each.tokens for each in found.values())
    small = usd < _WORTH * summary.total.usd and tokens < _WORTH * summary.total.tokens.prompt
    if small or not found:
        return "Cache: nothing to report."
    worst = sorted(found.items(), key=lambda item: (item[1].usd, item[1].tokens), reverse=True)
    causes = ", ".join(
        f"{money(each.usd)} in {counted(each.times, 'call')} {cause}" for cause, each in worst
    )
    share = ""
    if summary.total.usd:
        share = f", {percent(usd / summary.total.usd)} of the cost"
    return (
        f"Cache: {count(tokens)} tokens were paid again, {money(usd)} more than from the "
        f"cache{share}: {causes}."
    )


def _changing(sessions: Sequence[SessionReading]) -> str:
    agents = ", ".join(sorted({each.agent for each in sessions}))
    return (
        f"In {counted(len(sessions), 'session')} of {agents} hardly a call could use what the "
        "one before had cached: its prompt begins otherwise (a clock, a random text, other tools)."
    )


def _time(spent: Mapping[str, float]) -> str:
    known = {who: spent.get(who, 0.0) for who in _WHO}
    if not any(known.values()):
        return "Time: these logs have none."
    found = [(who, value) for who, value in known.items() if value]
    parts = sorted(found, key=lambda item: item[1], reverse=True)
    words = ", ".join(f"{seconds(value)} {_WHO[who]}" for who, value in parts)
    return f"Time: {words} (pauses over {AWAY_S / 60:.0f} minutes are not in it)."


def _ends(summary: Summary) -> str:
    ends = summary.ends
    if not ends.how:
        return "Ended: nothing to report."
    words = ", ".join(f"{number} {_ENDS[how]}" for how, number in ends.how.most_common())
    left = {
        "open things to do": ends.open_items,
        "a question where you had given an order": ends.asked,
        "next steps left": ends.next_steps,
    }
    rest = ", ".join(f"{number} with {what}" for what, number in left.items() if number)
    return f"Ended: {words}" + (f"; {rest}." if rest else ".")


def limit_lines(summary: Summary) -> Sequence[str]:
    """The limit in dollars for each session that would have ended few of them and saved most: a
    line for people, and the line of the config. None if no limit would have saved much."""
    costs = sorted(sums.usd for sums in summary.parts["session"].values() if sums.usd)
    if not costs:
        return ()
    limit = _rounded(costs[min(len(costs) - 1, math.floor(_LETS * len(costs)))])
    over = [cost for cost in costs if cost > limit]
    saved = sum(over) - limit * len(over)
    if saved < _SAVES * summary.total.usd:
        return ()
    return (
        f"A limit of {money(limit)} for each session would have ended {len(over)} of "
        f"{counted(len(costs), 'session')}, and saved at most {money(saved)}:",
        f"    budgets: [{{name: per-session, scope: tree, limits: {{usd: {limit:g}}}}}]",
    )


def _rounded(value: float) -> float:
    """The next figure of `_STEPS` at or above a positive value."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in _STEPS if step * power >= value), 10 * power)
