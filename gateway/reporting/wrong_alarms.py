"""Alarms that a person called wrong: their kind is muted for the project, and they are counted.

A muted kind is a hold on `alarm_subject`, so that every gateway on the store follows it; what was
said is in the audit log. Runs without the tag `project` are one project, with an empty name."""

import time
from collections import Counter
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from gateway.backends import Stores
from gateway.core.monitors import ALARMING, MONITORS
from gateway.stores.controls import Control, alarm_subject
from gateway.stores.filters import RunFilter
from gateway.stores.sql.audit_log import Change
from gateway.stores.sql.runs import RunStore
from gateway.values import FieldDict, Value

KIND = "alarm"  # of what was said about alarms, in the audit log
_MOST_SAID = 10_000
_WRONG = "wrong"
_RIGHT = "right"


class AlarmsOfStep(Value):
    """The alarms of one step of a run."""

    run_id: str  # the run
    tenant: str  # owner of the run
    project: str  # of the run; an alarm is muted for it
    step: int  # of the run
    monitors: tuple[str, ...]  # that raised the alarms; never empty

    def holds(self, reason: str, author: str) -> list[Control]:
        """The holds that mute these kinds for the project."""
        return [
            Control(
                subject=alarm_subject(self.tenant, self.project, monitor),
                tenant=self.tenant,
                action="mute",
                reason=reason or f"wrong at step {self.step} of {self.run_id}",
                at=time.time(),
                author=author,
            )
            for monitor in self.monitors
        ]

    def said(self, *, wrong: bool) -> tuple[str, str, str, FieldDict]:
        """The entry in the audit log: kind, act, subject and fields."""
        about = {"tenant": self.tenant, "project": self.project, "step": self.step}
        act = _WRONG if wrong else _RIGHT
        return KIND, act, self.run_id, {**about, "monitors": list(self.monitors)}


async def find_alarms(
    runs: RunStore, run_id: str, step: int | None, tenant: str | None
) -> AlarmsOfStep | None:
    """Returns the alarms of a step, by default of the newest step with an alarm; None if there
    are none. Raises: StoreError."""
    trace = await runs.get_run(run_id, tenant=tenant, content=False)
    for row in reversed(trace.steps if trace else ()):
        monitors = tuple([name for name in ALARMING if name in row.fired]) or row.fired
        if trace is not None and monitors and step in (None, row.step_index):
            return AlarmsOfStep(
                run_id=run_id,
                tenant=trace.run.tenant,
                project=trace.run.tags.get("project", ""),
                step=row.step_index,
                monitors=monitors,
            )
    return None


async def alarms_by_project(stores: Stores, tenant: str | None) -> list[FieldDict]:
    """Returns, for each project in which an alarm was called wrong: the number of wrong alarms,
    the number of all alarms (each counted once for a run and kind), the wrong share in [0, 1],
    and the kinds that are muted now. Raises: StoreError."""
    if stores.changes is None or stores.controls is None:
        return []
    said = _newest(await stores.changes.find(kind=KIND, limit=_MOST_SAID))
    held = {control.subject for control in await stores.controls.list_controls()}
    wrong = Counter([key[:2] for key, act in said.items() if act == _WRONG])
    found = []
    for owner, project in sorted({key[:2] for key in said if tenant in (None, key[0])}):
        named = wrong[owner, project]
        alarms = await _count(stores, owner, project)
        muted = [name for name in MONITORS if alarm_subject(owner, project, name) in held]
        share = named / max(alarms, named, 1)
        row = {"project": project, "wrong": named, "alarms": alarms, "share": share}
        found.append({**row, "muted": muted})
    return found


def _newest(said: Iterable[Change]) -> dict[tuple[str, str, str, str], str]:
    """Returns the newest judgement on each alarm, by tenant, project, run and monitor."""
    newest: dict[tuple[str, str, str, str], str] = {}
    for change in said:  # newest first
        body = msgspec.json.decode(change.body)
        for monitor in body.get("monitors", ()):
            key = (body.get("tenant", ""), body.get("project", ""), change.subject, monitor)
            newest.setdefault(key, body.get("act", ""))
    return newest


async def _count(stores: Stores, tenant: str, project: str) -> int:
    """The alarms of a project's runs, one for each run and kind."""
    total = 0
    for monitor in ALARMING:
        all_runs = RunFilter(tenant=tenant, monitor=monitor)
        tagged = replace(all_runs, tags=(("project", project or None),))  # None: with any value
        count = await stores.runs.count_runs(tagged)
        total += count if project else await stores.runs.count_runs(all_runs) - count
    return total
