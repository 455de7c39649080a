"""Rules of alerts over plain values, and the call counters that they look at."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from prometheus_client import Counter

from gateway.dialects import DIALECTS
from gateway.features.alerts.settings import AlertRuleSettings, RuleName
from gateway.observability.metrics import Metrics
from gateway.stores.queries import LiveRun
from gateway.stores.totals import STUCK_STEPS, RunRecord, Severity
from gateway.stores.watched import StoreHealth
from gateway.text.formatting import about, counted, money, percent
from gateway.values import FieldDict, Texts, Value, frozen

_ROUTES = frozenset(dialect.route for dialect in DIALECTS.values())
_CLIENT_GONE = 499


@frozen
class CallWindow:
    """Calls and tokens within a time."""

    calls: int = 0  # answered or given up within the time
    failed: int = 0  # answered with a status of 400 or above
    unsteered: int = 0  # without a decision
    input_tokens: int = 0  # with cached ones
    cached_tokens: int = 0  # of the input, read from the provider's cache

    def share(self, part: int) -> float:
        """The share that `part` is of the calls; 0 without one."""
        return part / self.calls if self.calls else 0.0

    @property
    def cached_share(self) -> float | None:
        """Share of the input tokens that were cached; None without input tokens."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else None


class CallCounters:
    """Differences of the counters over a sliding time: requests pay nothing for them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seen: deque[tuple[float, CallWindow]] = deque()
        self._rests = rests_in(metrics)

    def since(self, now: float, window_s: float) -> CallWindow:
        """Counts in the `window_s` before `now` (steady clock), or since the first call."""
        total = _totals(self._metrics)
        self._seen.append((now, total))
        while len(self._seen) > 1 and self._seen[1][0] <= now - window_s:
            self._seen.popleft()
        before = self._seen[0][1]
        return CallWindow(
            **{f.name: getattr(total, f.name) - getattr(before, f.name) for f in fields(total)}
        )

    def rested(self) -> Mapping[str, int]:
        """Number of rests of each deployment since the last call."""
        before = self._rests
        self._rests = rests_in(self._metrics)
        more = {name: times - before.get(name, 0) for name, times in self._rests.items()}
        return {name: times for name, times in more.items() if times}


def rests_in(metrics: Metrics) -> dict[str, int]:
    """Number of rests of each deployment since the start."""
    return {labels["deployment"]: n for labels, n in _samples(metrics.deployment_rests)}


def _totals(metrics: Metrics) -> CallWindow:
    calls = failed = 0
    for labels, count in _samples(metrics.requests):
        if labels["route"] in _ROUTES:
            calls += count
            status = int(labels["status"])
            failed += count if status >= 400 and status != _CLIENT_GONE else 0
    tokens = {labels["direction"]: count for labels, count in _samples(metrics.tokens)}
    return CallWindow(
        calls=calls,
        failed=failed,
        unsteered=sum(count for _, count in _samples(metrics.unsteered)),
        input_tokens=tokens.get("input", 0),
        cached_tokens=sum(count for _, count in _samples(metrics.cached_tokens)),
    )


def _samples(counter: Counter) -> list[tuple[Texts, int]]:
    return [
        (sample.labels, int(sample.value))
        for family in counter.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    ]


GOES_ON_AFTER = 5  # steps after a hand-over: one to answer, and some to leave the work in order
_ROUNDING = 1e-9  # of a share: sums of prices are not exact
_LEAST_USUAL_SHARE = 0.2  # a cached share below this was no cache to speak of; its drop is none


class Signals(Value):
    """Input of the rules at one moment."""

    live: Sequence[LiveRun] = ()  # the runs under way
    # runs with the newest calls, where runs are handed over, and those stopped lately
    newest: Sequence[RunRecord] = ()
    window: CallWindow = CallWindow()  # calls of this process in the last `window_s`
    # of the last 24 hours, in [0, 1]; None without input tokens
    usual_cached_share: float | None = None
    rested: Mapping[str, int] = {}  # times that each deployment began to rest since the last look
    store: StoreHealth | None = None  # set while the store is degraded
    accounts: "Sequence[UsedAccount]" = ()  # lately used ones


@frozen
class UsedAccount:
    """One subject of a budget and its most used limit."""

    budget: str  # name of the budget in the config
    scope: str  # what the budget counts together
    subject: str  # the one that is counted
    tenant: str  # owner of the subject; "" for a budget over all
    used: float  # share of the limit, 1 = all of it
    metric: str  # that limit
    estimated: bool = False  # the share rests on estimates
    unpriced: int = 0  # calls in it whose price is unknown


class ForgedAccount(UsedAccount):
    """An account whose limits were set without the admin key."""


class Finding(Value):
    """A condition that holds now."""

    rule: RuleName  # whose condition it is
    subject: str  # tells two conditions of one rule apart
    severity: Severity  # decides which receivers get it
    title: str  # one line for people
    tenant: str | None = None  # None: it concerns the gateway as a whole
    facts: Mapping[str, Any] = {}  # names and numbers; never texts of a conversation
    path: str = ""  # page about it; "" without one
    task: str = ""  # beginning of a run's task, which messages quote only where that is configured

    @property
    def key(self) -> str:
        """Identity of the alert: findings with one key are the same alert."""
        return f"{self.rule}:{self.subject}"


Rule = Callable[[Signals, AlertRuleSettings], Iterator[Finding]]


def _of_run(run: RunRecord, **own: Any) -> FieldDict:
    """The fields of a finding about a run; `own`: further facts."""
    facts = {"run_id": run.id, "agent": run.agent, "model": run.model_requested, **own}
    facts |= {"steps": run.totals.steps, "cost_usd": run.totals.cost_usd}
    path = f"/dashboard/runs/{run.id}"
    return {"tenant": run.tenant, "facts": facts, "path": path, "task": run.title}


def _stuck(signals: Signals, settings: AlertRuleSettings) -> Iterator[Finding]:
    if settings.run_stuck is None:
        return
    for live in signals.live:
        if live.stuck_steps < settings.run_stuck:
            continue
        run = live.run
        totals = live.run.totals
        yield Finding(
            rule="run_stuck",
            subject=run.id,
            severity="danger" if live.stuck_steps >= STUCK_STEPS else "warn",
            title=f"A run is stuck for {counted(live.stuck_steps, 'step')}: "
            f"{', '.join(live.reasons)}, {about(money(totals.cost_usd), totals.estimated)} so far",
            **_of_run(
                run,
                stuck_steps=live.stuck_steps,
                monitors=list(live.reasons),
                estimated_usd=totals.estimated.get("cost_usd", 0.0),
            ),
        )


def _handed_over(signals: Signals, settings: AlertRuleSettings) -> Iterator[Finding]:
    for run in signals.newest if settings.hand_over else ():
        step = run.handed_over
        steps = run.totals.steps
        titles = {}
        if step is not None:
            titles[run.id] = f"A run is handed over at step {step}: it was asked to stop and report"
        if step is not None and not run.stopped and steps >= step + GOES_ON_AFTER:
            later = counted(steps - step, "step")
            titles[f"{run.id}:goes_on"] = f"A run goes on {later} after it was handed over"
        for subject, title in titles.items():
            yield Finding(
                rule="hand_over",
                subject=subject,
                severity="warn" if subject == run.id else "danger",
                title=title,
                **_of_run(run, step=step),
            )


def _stopped(signals: Signals, settings: AlertRuleSettings) -> Iterator[Finding]:
    for run in signals.newest if settings.run_stopped else ():
        stop = run.stopped
        if stop is None or stop.action != "stop":
            continue
        # A budget's command has the limit: an agent that asks again meets the same stop.
        which = {"budget": stop.go_on, "steering": ""}.get(stop.by, f"{stop.at:.3f}")
        why = "" if stop.by == "operator" else f": {stop.why}"  # no text of a person
        cost = about(money(run.totals.cost_usd), run.totals.estimated)
        yield Finding(
            rule="run_stopped",
            subject=f"{run.id}:{which}",
            severity="danger",
            title=f"A run was {stop.words}{why} ({cost} so far)",
            **_of_run(run, by=stop.by, name=stop.name, go_on=stop.go_on),
        )


def _calls(signals: Signals, settings: AlertRuleSettings) -> Iterator[Finding]:
    window = signals.window
    span = f"{settings.window_s / 60:g} min"
    rules: tuple[tuple[RuleName, str, str, float | None, str], ...] = (
        ("error_rate", "fail", "failed", settings.error_rate, "time"),
        ("unsteered", "go out unsteered", "unsteered", settings.unsteered, "health"),
    )
    for rule, what, name, most, page in rules:
        count = getattr(window, name)
        rate = window.share(count)
        if most is not None and window.calls >= settings.min_calls and rate >= most:
            yield Finding(
                rule=rule,
                subject="calls",
                severity="danger" if rate >= 0.5 and name == "failed" else "warn",
                title=f"{percent(rate)} of the calls {what} ({count} of {window.calls} in {span})",
                facts={"calls": window.calls, name: count},
                path=f"/dashboard/{page}",
            )


def _cached(signals: Signals, settings: AlertRuleSettings) -> Iterator[Finding]:
    usual = signals.usual_cached_share
    now = signals.window.cached_share
    if settings.cached_share is None or usual is None or usual < _LEAST_USUAL_SHARE:
        return
    if now is None or signals.window.calls < settings.min_calls:
        return
    if now < settings.cached_share * usual:
        yield Finding(
            rule="cached_share",
            subject="calls",
            severity="warn",
            title=f"The share of input from the provider's cache fell to {percent(now)}, "
            f"from {percent(usual)} in the last day",
            facts={"cached_share": round(now, 4), "usual_cached_share": round(usual, 4)},
            path="/dashboard/time",
        )


def _resting(signals: Signals, settings: AlertRuleSettings) -> Iterator[Finding]:
    for name, times in signals.rested.items() if settings.deployment_resting else ():
        yield Finding(
            rule="deployment_resting",
            subject=name,
            severity="warn",
            title=f"The deployment {name} failed too often and rests",
            facts={"deployment": name, "times": times},
        )


def _store(signals: Signals, settings: AlertRuleSettings) -> Iterator[Finding]:
    store = signals.store
    if not settings.store_degraded or store is None or store.incident is None:
        return
    kind = store.incident.kind.replace("_", " ")
    yield Finding(
        rule="store_degraded",
        subject=store.incident.kind,
        severity="danger",
        title=f"The store cannot be used ({kind}): {counted(store.waiting, 'record')} wait "
        "in memory",
        facts={"kind": store.incident.kind, "waiting": store.waiting},
        path="/dashboard/health",
    )


def _budgets(signals: Signals, settings: AlertRuleSettings) -> Iterator[Finding]:
    for account in signals.accounts:
        if isinstance(account, ForgedAccount):
            yield Finding(
                rule="budget",
                subject=f"{account.budget}:{account.subject}:forged",
                severity="danger",
                title=f"Limits of the budget {account.budget} of {account.scope} {account.subject} "
                "were set without the admin key, and do not hold",
            )
        reached = [share for share in settings.budget if account.used >= share - _ROUNDING]
        if not reached:
            continue
        share = max(reached)
        subject = account.subject
        alike = [one.run for one in signals.live]
        found = [run.id for run in alike if subject in (run.id, run.conversation_id)]
        run = subject if account.scope == "run" else next(iter(found), "")
        guess = f"; the price of {counted(account.unpriced, 'call')} is unknown"
        yield Finding(
            rule="budget",
            subject=f"{account.budget}:{account.subject}:{share:g}",
            severity="danger" if share >= 1 else "warn",
            title=f"The budget {account.budget} of {account.scope} {account.subject} is used to "
            f"{about(percent(account.used), account.estimated)} ({account.metric})"
            + (guess if account.unpriced else ""),
            tenant=account.tenant or None,
            facts={
                "budget": account.budget,
                "scope": account.scope,
                "subject": account.subject,
                "used": round(account.used, 4),
                "metric": account.metric,
                "estimated": account.estimated,
                "unpriced_calls": account.unpriced,
                **({"run_id": run} if run else {}),
            },
            path=f"/dashboard/runs/{run}" if run else "/dashboard",
        )


# Every rule, in the order in which findings are raised.
RULES: tuple[Rule, ...] = (
    _stuck,
    _handed_over,
    _stopped,
    _budgets,
    _calls,
    _cached,
    _resting,
    _store,
)


def findings(signals: Signals, settings: AlertRuleSettings) -> list[Finding]:
    """Everything that is worth an alert now."""
    return [found for rule in RULES for found in rule(signals, settings)]
