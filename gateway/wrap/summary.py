"""Summary of a wrapped command: its runs, read from the gateway, as a few lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from gateway.errors import ConfigError
from gateway.stores.totals import Stop
from gateway.text import formatting
from gateway.text.sanitize import one_line

Trace = Mapping[str, Any]  # one run as `GET /api/runs/{id}` gives it: `run` and `steps`
MOST_RUNS = 20  # that are shown one by one; all are counted
_COUNTS = ("steps", "calls", "input_tokens", "cached_tokens", "output_tokens")

_TASK_CHARS = 60
_TEXT_CHARS = 44
_WHY_CHARS = 300
_MOST_TEXTS = 8


def lines(traces: Sequence[Trace], *, page: str, others: str) -> Iterator[str]:
    """The summary, at most 80 characters a line where ids allow it. page: how one run is shown,
    with `{run}` in place of its id; others: how all are listed."""
    if not traces:
        yield "nothing was recorded: no request of the command came here"
        return
    yield _headline([trace["run"]["totals"] for trace in traces])
    for trace in traces[:MOST_RUNS]:
        yield from _run(trace, page)
    if len(traces) > MOST_RUNS:
        yield f"  and {len(traces) - MOST_RUNS} more: {others}"


def as_json(traces: Sequence[Trace], *, status: int, url: str) -> dict[str, Any]:
    """The same for a program: exit status, sums, and each run with the guidance it got."""
    totals = [trace["run"]["totals"] for trace in traces]
    return {
        "exit_status": status,
        "gateway": url,
        "runs": [{**trace["run"], "guidance": list(_guidance(trace))} for trace in traces],
        **{name: _sum(totals, name) for name in _COUNTS},
        **{name: _dollars(totals, name) for name in ("cost_usd", "saved_usd")},
        "cached_share": _cached_share(totals),
    }


def _headline(totals: Sequence[Mapping[str, Any]]) -> str:
    tokens = _sum(totals, "input_tokens") + _sum(totals, "output_tokens")
    cost, saved = _dollars(totals, "cost_usd"), _dollars(totals, "saved_usd")
    estimated = any(each["estimated"] for each in totals)
    price = "cost unknown" if cost is None else formatting.about(formatting.money(cost), estimated)
    if cost is not None and saved:
        price += f" ({formatting.money(saved)} saved by routing)"
    parts = [
        formatting.counted(len(totals), "run"),
        formatting.counted(_sum(totals, "steps"), "step"),
        f"{formatting.count(tokens)} tokens",
        price,
    ]
    if (cached := _cached_share(totals)) is not None:
        parts.append(f"{formatting.percent(cached)} of input from cache")
    if unsteered := sum(sum(each["unsteered"].values()) for each in totals):
        parts.append(f"{formatting.counted(unsteered, 'call')} unsteered")
    return ", ".join(parts)


def _run(trace: Trace, page: str) -> Iterator[str]:
    run = trace["run"]
    totals = run["totals"]
    task = one_line(run["task_preview"], _TASK_CHARS)
    yield f"  {run['id']}  {task}"
    states = "  ".join(f"{name} {number}" for name, number in totals["states"].items())
    ended = f", outcome {run['outcome']}" if run["outcome"] else ""
    yield f"    states   {states}, now {run['state']}{ended}"
    if stop := run.get("stopped"):
        yield f"    {Stop(**stop).words}: {one_line(stop['why'], _WHY_CHARS) or 'no reason given'}"
    models = (f"{one_line(name, 40)} {number}" for name, number in totals["models"].items())
    yield f"    models   {'  '.join(models)}"
    if totals["fired"]:
        fired = "  ".join(f"{name} {number}" for name, number in totals["fired"].items())
        yield f"    alarms   {fired}"
    label = "given" if run["mode"] != "shadow" else "shadow"
    given = list(_guidance(trace))
    for number, text in enumerate(given[:_MOST_TEXTS]):
        head = label if number == 0 else ""
        said = "" if text["rules"] else f": {one_line(text['text'], _TEXT_CHARS)}"
        yield f"    {head:<8} step {text['step']:<3} {text['name']}{said}"
    if len(given) > _MOST_TEXTS:
        yield f"    {'':<8} and {len(given) - _MOST_TEXTS} more"
    if not given:
        yield f"    {label:<8} nothing"
    yield f"    page     {page.replace('{run}', run['id'])}"


def _guidance(trace: Trace) -> Iterator[dict[str, Any]]:
    for step in trace["steps"]:
        for row in step["guidance"]:
            rules = row["source"] == "e3"  # one text with many rules
            name = f"{row['source']} {row['failure_type'] or row['pattern_id'] or 'directive'}"
            if rules:
                number = len((row["pattern_id"] or "").split(","))
                name = formatting.counted(number, "universal rule")
            about = {"step": step["step_index"], "rules": rules, "name": name}
            yield about | {"text": row["text"], "applied": row["applied"]}


def _sum(totals: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(each[name] for each in totals)


def _dollars(totals: Sequence[Mapping[str, Any]], name: str) -> float | None:
    known = [each[name] for each in totals if each[name] is not None]
    return sum(known) if known else None


def _cached_share(totals: Sequence[Mapping[str, Any]]) -> float | None:
    """Input tokens that the provider's cache had, of those that it reported; None without any."""
    tokens = _sum(totals, "input_tokens")
    return _sum(totals, "cached_tokens") / tokens if tokens else None


_ANSWER_S = 10.0
_MOST_RUNS = 100


def traces_of(url: str, since: float) -> list[Trace]:
    """Every run of the gateway at `url` with a call after `since` (seconds since 1970), oldest
    first. Raises ConfigError: the control plane is closed, or does not answer."""
    try:
        with httpx.Client(base_url=url, timeout=_ANSWER_S, trust_env=False) as client:
            page: dict[str, str | int] = {"sort": "updated_at", "limit": _MOST_RUNS}
            answer = client.get("/api/runs", params=page)
            if answer.status_code in (401, 403):
                raise ConfigError("the gateway's control plane needs a key")
            runs = [run for run in _read(answer)["runs"] if run["updated_at"] >= since]
            one = {"content": "false"}
            found = [client.get(f"/api/runs/{run['id']}", params=one) for run in runs]
    except httpx.HTTPError as exc:
        raise ConfigError(f"{url} does not answer: {exc}") from exc
    return [_read(answer) for answer in reversed(found)]


def gateway_at(url: str) -> str:
    """The address of a gateway, given with or without `/v1`; empty when there is no gateway."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    root = f"{parts.scheme}://{parts.netloc}"
    try:
        answer = httpx.get(f"{root}/healthz", timeout=_ANSWER_S, trust_env=False)
        known = answer.status_code == 200 and set(answer.json()) == {"status", "version"}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError):
        return ""
    return root if known else ""


def _read(answer: httpx.Response) -> dict[str, Any]:
    if answer.status_code != 200:
        raise ConfigError(f"{answer.url} answers {answer.status_code}")
    found: dict[str, Any] = answer.json()
    return found
