"""Rules of alerts over plain values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gateway.budget_interface import ForgedAccount, UsedAccount
from gateway.core.trouble import Act
from gateway.features.alerts.settings import AlertRuleSettings, RuleName
from gateway.observability.metrics import Metrics
from gateway.stores.severity import STUCK_STEPS, Severity
from gateway.stores.totals import RunRecord
from gateway.stores.under_way import LiveRun
from gateway.stores.watched import StoreHealth
from gateway.text.formatting import about, counted, money, percent
from gateway.upstream.dry_seats import DrySeat
from gateway.values import FieldDict, Value


class RestCounter:
    """Counts how often deployments began to rest, from the metrics: requests pay nothing for it."""

    def __init__(self, metrics: Metrics):
        self._counter = metrics.deployment_rests
        self._before = self._rests()

    def new(self) -> Mapping[str, int]:
        """Number of rests of each deployment since the last call."""
        before = self._before
        self._before = self._rests()
        more = {name: times - before.get(name, 0) for name, times in self._before.items()}
        return {name: times for name, times in more.items() if times}

    def _rests(self) -> dict[str, int]:
        """Number of rests of each deployment since the start."""
        return {
            sample.labels["deployment"]: int(sample.value)
            for family in self._counter.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        }


GOES_ON_AFTER = 5  # steps after a hand-over: one to answer, and some to leave the work in order
_ROUNDING = 1e-9  # of a share: sums of prices are not exact


class Observations(Value):
    """Input of the rules at one moment."""

    live: Sequence[LiveRun] = ()  # the runs under way
    # acts on trouble since the last look, with the run and its tenant
    acts: Sequence[tuple[str, str, Act]] = ()
    # runs with the newest calls, where runs are handed over, and those stopped lately
    newest: Sequence[RunRecord] = ()
    rested: Mapping[str, int] = {}  # times that each deployment began to rest since the last look
    seats: Sequence[DrySeat] = ()  # logins of clients that are at their limit, or were lately
    store: StoreHealth | None = None  # set while the store is degraded
    accounts: Sequence[UsedAccount] = ()  # lately used ones
    # facts about clients that change their prompt's beginning, by tenant and client
    unsteady: Mapping[tuple[str, str], FieldDict] = {}


class Finding(Value):
    """A condition that holds now."""

    rule: RuleName  # whose condition it is
    subject: str  # tells two conditions of one rule apart
    severity: Severity  # how bad it is, by its code
    title: str  # one line for people
    tenant: str | None = None  # None: it concerns the gateway as a whole
    facts: Mapping[str, Any] = {}  # names and numbers; never texts of a conversation
    path: str = ""  # page about it; "" without one
    task: str = ""  # beginning of a run's task, which messages quote only where that is configured

    @property
    def key(self) -> str:
        """Identity of the alert: findings with one key are the same alert."""
        return f"{self.rule}:{self.subject}"

    @property
    def trouble(self) -> str:
        """The subject of its thread where that is no session: all shares of a budget are one."""
        return ":".join([str(self.facts[n]) for n in ("budget", "subject") if n in self.facts])


Rule = Callable[[Observations, AlertRuleSettings], Iterator[Finding]]


def _of_run(run: RunRecord, **own: Any) -> FieldDict:
    """The fields of a finding about a run; `own`: further facts."""
    facts = {"run_id": run.id, "agent": run.agent, "model": run.model_requested, **own}
    facts |= {"steps": run.totals.steps, "cost_usd": run.totals.cost_usd}
    path = f"/dashboard/runs/{run.id}"
    return {"tenant": run.tenant, "facts": facts, "path": path, "task": run.title}


def _stuck(signals: Observations, settings: AlertRuleSettings) -> Iterator[Finding]:
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


def _trouble(signals: Observations, settings: AlertRuleSettings) -> Iterator[Finding]:
    for run, tenant, act in signals.acts:
        if act.name in ("tell", "advise", "route"):  # the others have alerts of their own
            yield Finding(
                rule="trouble",
                subject=f"{run}:{max(alarm.newest_step for alarm in act.alarms)}",
                severity="danger",
                title=f"A failure goes on in spite of advice: {act.summary}",
                tenant=tenant,
                facts={"run_id": run, "act": act.name},
                path=f"/dashboard/runs/{run}",
            )


def _handed_over(signals: Observations, settings: AlertRuleSettings) -> Iterator[Finding]:
    for run in signals.newest:
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


def _stopped(signals: Observations, settings: AlertRuleSettings) -> Iterator[Finding]:
    for run in signals.newest:
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


def _resting(signals: Observations, settings: AlertRuleSettings) -> Iterator[Finding]:
    for name, times in signals.rested.items():
        yield Finding(
            rule="deployment_resting",
            subject=name,
            severity="warn",
            title=f"The deployment {name} failed too often and rests",
            facts={"deployment": name, "times": times},
            path="/dashboard/health",
        )


def _dry(signals: Observations, settings: AlertRuleSettings) -> Iterator[Finding]:
    for seat in signals.seats:
        about = f"{seat.about}:{seat.since:.0f}"
        yield Finding(
            rule="deployment_resting",
            subject=f"{about}:{'over' * bool(seat.back_at)}",
            severity="warn",
            title=seat.words,
            facts={"subject": about, "calls": seat.calls, "cost_usd": seat.usd},
            path="/dashboard",
        )


def _store(signals: Observations, settings: AlertRuleSettings) -> Iterator[Finding]:
    store = signals.store
    if store is None or store.incident is None:
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


def _budgets(signals: Observations, settings: AlertRuleSettings) -> Iterator[Finding]:
    for account in signals.accounts:
        if isinstance(account, ForgedAccount):
            yield Finding(
                rule="budget",
                subject=f"{account.budget}:{account.subject}:forged",
                severity="danger",
                title=f"Limits of the budget {account.budget} of {account.scope} {account.subject} "
                "were set without the admin key, and do not hold",
                path="/dashboard",
            )
        reached = [share for share in settings.budget if account.used >= share - _ROUNDING]
        if not reached:
            continue
        share = max(reached)
        alike = [one.run for one in signals.live]
        found = [run.id for run in alike if account.subject in (run.id, run.conversation_id)]
        if account.scope == "run":
            run = account.subject
        else:
            run = next(iter(found), "")
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


def _prompts(signals: Observations, settings: AlertRuleSettings) -> Iterator[Finding]:
    for (tenant, agent), facts in signals.unsteady.items():
        yield Finding(
            rule="prompt_changes",
            subject=f"{tenant}:{agent}",
            severity="warn",
            title=f"The provider's cache is of no use to {agent or 'a client'}: at each of "
            f"{facts['calls']} calls its prompt began otherwise ({facts['part']})",
            tenant=tenant,
            facts={"agent": agent, **facts},
            path=f"/dashboard/runs/{facts['run_id']}",
        )


# Every rule, in the order in which findings are raised.
RULES: tuple[Rule, ...] = (
    _stuck,
    _trouble,
    _handed_over,
    _stopped,
    _budgets,
    _resting,
    _dry,
    _store,
    _prompts,
)


def findings(signals: Observations, settings: AlertRuleSettings) -> list[Finding]:
    """Everything that is worth an alert now. A rule has the name of the setting that switches it
    off."""
    found = [each for rule in RULES for each in rule(signals, settings)]
    return [each for each in found if getattr(settings, each.rule)]
