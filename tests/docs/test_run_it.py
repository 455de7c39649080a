"""The pages of *Run it*: what they show is what is printed, and what they name exists."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from pathlib import Path
from typing import Any

import pytest

from gateway import errors
from gateway.budget_interface import Amounts
from gateway.config import Settings
from gateway.core.monitors.alarms import Alarm
from gateway.core.trouble import Act
from gateway.features.alerts.records import AlertRecord
from gateway.features.alerts.sender import alert_view, signature
from gateway.features.budgets.accounts import Account, AccountKey, Wanted
from gateway.features.budgets.settings import BudgetLimits, BudgetSettings
from gateway.features.budgets.texts import used_up
from gateway.features.budgets.which_apply import Applied, standing

ROOT = Path(__file__).parents[2]
NAMES = (
    "deploy.md", "budgets.md", "alerts.md", "monitoring.md", "security.md", "privacy.md",
    "headers.md", "store.md",
)  # fmt: skip
PAGES = {name: (ROOT / "docs" / name).read_text() for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_every_test_that_is_named_exists(name: str) -> None:
    """What is defended is shown by a test that is there."""
    for path in re.findall(r"`(tests/[\w/.]+)`", PAGES[name]):
        assert (ROOT / path).exists(), path


def test_figures_beside_settings_are_their_defaults() -> None:
    """`server.drain_s`, 30 s; `control.ask_wait_s` (240); and a cell behind that of a setting."""
    found = [
        (key, float(value))
        for text in PAGES.values()
        for key, value in re.findall(r"`([a-z_]+\.[a-z_]+)`(?:, | \(| \| )(\d+)\b", text)
    ]
    assert len(found) > 9
    for key, value in found:
        section, name = key.split(".")
        assert getattr(getattr(Settings(), section), name) == value, key


def test_the_text_of_a_stop_is_that_of_the_page() -> None:
    """Of a budget of two dollars, of which $1.96 is used."""
    budget = BudgetSettings(name="per-task", scope="tree", limits=BudgetLimits(usd=2))
    key = AccountKey(budget="per-task", subject="c-1")
    wanted = Wanted(key=key, tenant="", limits={"usd": 2.0}, stop_at=1.0)
    account = Account(budget="per-task", subject="c-1", spent=Amounts(usd=1.96))
    status = standing(Applied(budget=budget, wanted=wanted), account, now=0.0)
    assert f"*{errors.STOPPED}{used_up(status, 'usd', 0.0)}*" in PAGES["budgets.md"]


def test_the_reason_of_an_act_is_that_of_the_page() -> None:
    """By monitor, tries and steps, without a word of the run."""
    alarm = Alarm(
        monitor="test_repeat", entry="", sentence="", count=5, first_step=3, newest_step=9
    )
    [reason] = Act(name="route", alarms=(alarm,)).reasons
    assert f"`{reason}`" in PAGES["budgets.md"]


def test_a_webhook_is_checked_as_the_page_says() -> None:
    """By its program, which accepts our signature and no other body; and it names each field."""
    [program] = re.findall(r"```python\n(.*?)```", PAGES["alerts.md"], re.DOTALL)
    body, at = b'{"alerts": []}', int(time.time())
    mac = signature("secret", body, at).partition("v1=")[2]
    for sent, accepted in ((body, True), (b"{}", False)):
        names: dict[str, Any] = {"secret": "secret", "t": at, "v1": mac, "body": sent}
        exec(program, {"hmac": hmac, "hashlib": hashlib, "time": time}, names)  # noqa: S102 - our page
        assert names["ok"] is accepted
    [listed] = re.findall(r'`{"alerts": \[{(.*?)}\]}`', PAGES["alerts.md"])
    alert = AlertRecord(id="1", key="", rule="", severity="warn", title="", raised_at=0.0)
    assert set(re.findall(r'"(\w+)"', listed)) == set(alert_view(alert, None))
