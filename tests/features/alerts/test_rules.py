"""When something is worth an alert, and when the alert is sent."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.budget_interface import ForgedAccount, UsedAccount
from gateway.config import settings_from_dict
from gateway.core.monitors import Alarm
from gateway.core.trouble import Act
from gateway.errors import ConfigError
from gateway.features.alerts.rules import (
    Observations,
    RestCounter,
    findings,
)
from gateway.features.alerts.settings import AlertRuleSettings, AlertSettings
from gateway.features.alerts.when_sent import due_at
from gateway.observability.metrics import Metrics
from gateway.stores.stopped_by import Stop
from gateway.stores.totals import HAND_OVER, RunRecord, RunTotals
from gateway.stores.under_way import LiveRun
from gateway.stores.watched import Incident, StoreHealth
from steering_gateway_testing.store_conformance.records import START, a_step

RULES = AlertRuleSettings()
ALARMS = tuple(
    Alarm(
        monitor="streak",
        entry="the secret fence",
        sentence="the secret fence failed again",
        count=4,
        first_step=3,
        newest_step=newest,
    )
    for newest in (8, 9)
)


def a_live_run(stuck: int) -> LiveRun:
    record = RunRecord(
        **{name: "" for name in RunRecord.__struct_fields__ if name != "totals"},  # type: ignore[arg-type]
        totals=RunTotals(steps=40, cost_usd=1.5),
    )
    run = replace(
        record, id="r1", tenant="acme", task_preview="Mend the secret fence", stopped=None
    )
    newest = a_step(40, fired=("streak",), evidence={"streak": "bash x9"})
    return LiveRun(run=run, newest=newest, stuck_steps=stuck)


def an_account(used: float) -> UsedAccount:
    return UsedAccount(
        budget="day", scope="day", subject="2026-11-22", tenant="", used=used, metric="usd"
    )


def a_handed_over_run(steps: int, *, ended: bool = False) -> RunRecord:
    stop = Stop(action="stop", by="on_trouble", why="it loops") if ended else None
    totals = RunTotals(steps=steps, asked={HAND_OVER: 12})
    return replace(a_live_run(0).run, totals=totals, stopped=stop)


def a_stopped_run(by: str, at: float, action: str = "stop") -> RunRecord:
    stop = Stop(action=action, by=by, why="it loops", at=at, go_on="raise it")
    return replace(a_live_run(0).run, stopped=stop)


CASES: tuple[tuple[Observations, list[tuple[str, str]]], ...] = (
    (Observations(), []),
    (Observations(live=(a_live_run(4),)), []),
    (Observations(live=(a_live_run(5),)), [("run_stuck:r1", "danger")]),
    *[
        (
            Observations(acts=(("r1", "acme", Act(name=name, alarms=ALARMS)),)),
            [("trouble:r1:9", "danger")],
        )
        for name in ("tell", "advise", "route")
    ],
    *[
        (Observations(acts=(("r1", "acme", Act(name=name, alarms=ALARMS)),)), [])
        for name in ("ask", "hand_over", "end")  # which have alerts of their own
    ],
    (Observations(newest=(a_live_run(0).run,)), []),
    (Observations(newest=(a_handed_over_run(16),)), [("hand_over:r1", "warn")]),
    (
        Observations(newest=(a_handed_over_run(17),)),
        [("hand_over:r1", "warn"), ("hand_over:r1:goes_on", "danger")],
    ),
    (
        Observations(newest=(a_handed_over_run(17, ended=True),)),
        [("hand_over:r1", "warn"), ("run_stopped:r1:0.000", "danger")],
    ),
    (
        Observations(newest=(a_stopped_run("on_trouble", 7.5),)),
        [("run_stopped:r1:7.500", "danger")],
    ),
    (
        Observations(newest=(a_stopped_run("budget", 1), a_stopped_run("budget", 2))),
        [("run_stopped:r1:raise it", "danger")] * 2,  # one stop, however often the agent asks
    ),
    (Observations(newest=(a_stopped_run("operator", 1, "pause"),)), []),
    (Observations(accounts=(an_account(0.49),)), []),
    (Observations(accounts=(an_account(0.6),)), [("budget:day:2026-11-22:0.5", "warn")]),
    (Observations(accounts=(an_account(0.8),)), [("budget:day:2026-11-22:0.8", "warn")]),
    (Observations(accounts=(an_account(7),)), [("budget:day:2026-11-22:1", "danger")]),
    (Observations(rested={"fast": 2}), [("deployment_resting:fast", "warn")]),
    (
        Observations(
            store=StoreHealth(
                incident=Incident(kind="busy", reason="locked", since=START),
                waiting=7,
                waiting_bytes=9,
            )
        ),
        [("store_degraded:busy", "danger")],
    ),
)


@pytest.mark.parametrize(("signals", "wanted"), CASES)
def test_each_rule_finds_its_condition(
    signals: Observations, wanted: list[tuple[str, str]]
) -> None:
    """At its threshold, and not under it."""
    found = findings(signals, RULES)
    assert [(one.key, one.severity) for one in found] == wanted
    assert not any("secret fence" in one.title for one in found)


def test_sums_that_are_estimated_in_part_say_so() -> None:
    """The cost of a stuck run, and the share of a budget; without estimates neither does."""
    live = a_live_run(5)
    guessed = replace(live.run.totals, estimated={"calls": 1, "tokens": 9, "cost_usd": 0.25})
    runs = (live, dataclasses.replace(live, run=replace(live.run, totals=guessed)))
    accounts = (an_account(0.6), dataclasses.replace(an_account(0.6), estimated=True))
    found = findings(Observations(live=runs, accounts=accounts), RULES)
    assert [one.title.split(", ")[-1] for one in found[:2]] == [
        "$1.50 so far",
        "about $1.50 so far",
    ]
    assert [one.facts["estimated_usd"] for one in found[:2]] == [0.0, 0.25]
    assert ["about 60%" in one.title for one in found[2:]] == [False, True]
    assert [one.facts["estimated"] for one in found[2:]] == [False, True]


def test_rules_can_be_switched_off() -> None:
    """Each by null, false or an empty list."""
    off = AlertRuleSettings(
        run_stuck=None,
        trouble=False,
        hand_over=False,
        run_stopped=False,
        budget=(),
        deployment_resting=False,
        store_degraded=False,
    )
    for signals, _ in CASES:
        assert findings(signals, off) == []


def test_a_rest_is_counted_once() -> None:
    """Those since the last look, by deployment."""
    metrics = Metrics()
    metrics.deployment_rests.labels("fast").inc()
    rests = RestCounter(metrics)
    metrics.deployment_rests.labels("fast").inc(2)
    assert (rests.new(), rests.new()) == ({"fast": 2}, {})


def at(hour: int, minute: int) -> float:
    return time.mktime((2026, 3, 10, hour, minute, 30, 0, 0, -1))


def test_alerts_wait_for_each_other_and_for_the_morning() -> None:
    """Those of one interval are due together; in quiet hours only some rules are sent."""
    grouped = AlertSettings(group_wait_s=10)
    assert {due_at("run_stuck", START + s, grouped) for s in (0, 4, 9.9)} == {START + 10}
    assert due_at("run_stuck", START, AlertSettings(group_wait_s=0)) == START
    night = AlertSettings(group_wait_s=0, quiet_hours="22:00-07:00")
    morning = time.mktime((2026, 3, 10, 7, 0, 0, 0, 0, -1))
    next_morning = time.mktime((2026, 3, 11, 7, 0, 0, 0, 0, -1))
    assert due_at("run_stuck", at(3, 0), night) == morning
    assert due_at("run_stuck", at(23, 0), night) == next_morning
    assert due_at("store_degraded", at(3, 0), night) == at(3, 0)
    for hour, minute in ((7, 0), (21, 59), (12, 0)):
        assert due_at("run_stuck", at(hour, minute), night) == at(hour, minute)
    noon = AlertSettings(group_wait_s=0, quiet_hours="12:00-13:30")
    assert due_at("run_stuck", at(12, 10), noon) == time.mktime((2026, 3, 10, 13, 30, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sinks": [{"name": "a", "url": "T0PSECRET"}]}, r"alerts.sinks\[0\].url: '\*\*\*\*\*'"),
        ({"sinks": [{"name": "a b", "url": "http://x"}]}, r"alerts.sinks\[0\].name"),
        ({"sinks": [{"name": "a", "url": "http://x", "kind": "fax"}]}, "slack"),
        ({"sinks": [{"name": "a", "url": "http://x", "rules": ["stuck"]}]}, "run_stuck"),
        ({"sinks": [{"name": "a", "url": "http://x"}] * 2}, "two are named 'a'"),
        (
            {"sinks": [{"name": "a", "url": "http://x", "kind": "slack", "secret": "s"}]},
            "no signature",
        ),
        ({"quiet_hours": "late"}, "22:00-07:00"),
        ({"rules": {"run_stuck": 0}}, "alerts.rules.run_stuck"),
        ({"rules": {"budget": [80]}}, "alerts.rules.budget"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, Any], message: str) -> None:
    """With the key's path, and without what may be a secret."""
    with pytest.raises(ConfigError, match=message) as caught:
        settings_from_dict({"alerts": values}, {})
    assert "T0PSECRET" not in str(caught.value)


def test_a_forged_limit_is_alerted_about() -> None:
    """Once for each account, whatever share is used."""
    about: dict[str, Any] = {
        "budget": "few",
        "scope": "tenant",
        "subject": "acme",
        "tenant": "acme",
    }
    used = UsedAccount(**about, used=0.1, metric="calls")
    forged = ForgedAccount(**about, used=0.1, metric="calls")
    assert findings(Observations(accounts=[used]), AlertRuleSettings()) == []
    (found,) = findings(Observations(accounts=[forged]), AlertRuleSettings())
    assert (found.rule, found.severity) == ("budget", "danger")
    assert "without the admin key" in found.title
