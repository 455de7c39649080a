"""When an alert is sent: at once, with others, after the quiet hours, or in the digest of a day."""

from datetime import datetime, timedelta

from gateway.features.alerts.records import AlertRecord
from gateway.features.alerts.rules import Finding
from gateway.features.alerts.settings import AlertSettings

_DAY_MINUTES = 24 * 60


def in_digest(about: AlertRecord | Finding, settings: AlertSettings) -> bool:
    """Whether an alert waits for the next digest."""
    own = ("approval_asked", "weekly_report")
    return bool(settings.digest_at) and about.severity != "danger" and about.rule not in own


def digest_at(now: float, settings: AlertSettings) -> float:
    """The time of the next digest after `now` (both epoch seconds)."""
    hour, minute = map(int, settings.digest_at.split(":"))
    return _next(hour * 60 + minute, datetime.fromtimestamp(now).astimezone())


def due_at(rule: str, now: float, settings: AlertSettings) -> float:
    """Returns the time of the first attempt for an alert raised at `now` (both epoch seconds).
    All alerts within one `group_wait_s` are due together, on every gateway, and make one
    message."""
    wait_s = {"approval_asked": 0.0}.get(rule, settings.group_wait_s)
    due = now
    if wait_s:
        due = (now // wait_s + 1) * wait_s
    quiet = settings.quiet_minutes()
    if quiet is None or rule in settings.quiet_rules:
        return due
    begin, end = quiet
    local = datetime.fromtimestamp(due).astimezone()
    minute = local.hour * 60 + local.minute
    if (minute - begin) % _DAY_MINUTES >= (end - begin) % _DAY_MINUTES:
        return due
    return _next(end, local)


def _next(minutes: int, local: datetime) -> float:
    """The next time (epoch) at which so many minutes of a local day are over."""
    then = local.replace(hour=minutes // 60, minute=minutes % 60, second=0, microsecond=0)
    return (then if then > local else then + timedelta(days=1)).timestamp()
