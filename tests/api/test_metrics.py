"""What Prometheus reads of steering, cost and listeners, and the dashboard that shows it."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml

from gateway import __version__
from gateway.observability.metrics import Counter, Histogram, Metrics
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.control_plane import LoopingAgent, client_of
from tests.api.conftest import Start

GATEWAY = Path(__file__).parents[2]
GRAFANA = GATEWAY / "docs" / "grafana.json"
RULES = Path(__file__).parents[2] / "docs" / "alerts.rules.yml"


def read(text: str, name: str, **labels: str) -> float:
    """One sample of an exposition."""
    wanted = ",".join(f'{key}="{value}"' for key, value in labels.items())
    found = re.search(rf"^{name}(?:{{{re.escape(wanted)}}})? (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_counts_are_those_of_the_library() -> None:
    """Amounts in every bucket, on its bound, above all and NaN; children by their labels."""
    amounts = (-1.0, 0.0, 0.1, 0.10001, 0.2, 5.0, math.inf, math.nan)
    texts = []
    for counter, histogram in (
        (prometheus_client.Counter, prometheus_client.Histogram),
        (Counter, Histogram),
    ):
        registry = prometheus_client.CollectorRegistry()
        calls = counter("calls", "Calls.", ("kind",), registry=registry)
        sizes = histogram("sizes", "Sizes.", ("kind",), buckets=(0.1, 0.2), registry=registry)
        for amount in amounts:
            sizes.labels("a").observe(amount)
        for kind in ("a", "b", "a"):
            calls.labels(kind).inc()
        calls.labels(kind="a").inc(2.5)
        lines = prometheus_client.generate_latest(registry).decode().splitlines()
        texts.append([line for line in lines if "_created" not in line])
    assert texts[0] == texts[1]


def test_the_process_and_the_version_are_there() -> None:
    """What a dashboard of any service asks for; each gateway of a process has its own."""
    for metrics in (Metrics(), Metrics()):
        text = metrics.render().decode()
        assert read(text, "process_resident_memory_bytes") > 0
        assert read(text, "process_open_fds") > 0
        assert read(text, "gateway_build_info", version=__version__) == 1


def test_each_metric_that_is_counted_is_declared() -> None:
    """Names of metrics stand in a table, which types do not check."""
    metrics = Metrics()
    used = set()
    for path in (GATEWAY / "gateway").rglob("*.py"):
        if "features" not in path.parts:
            used |= set(re.findall(r"\bmetrics\.(\w+)\.(?:labels|inc|set)\b", path.read_text()))
    assert len(used) > 10
    assert [name for name in sorted(used) if not hasattr(metrics, name)] == []


def test_steps_and_costs_are_counted(start: Start, upstream: ScriptedUpstream) -> None:
    """Scored steps with difficulty and composite; cost with and without steering."""
    server = start(model_routing={"NORMAL": "gpt-4o-mini"})
    with client_of(server) as client:
        agent = LoopingAgent(client, upstream, "Find the file")
        for _ in range(5):
            agent.step()
        run = client.get(f"/api/runs/{agent.run_id}").json()["run"]
        with client.stream("GET", "/api/events"):
            text = client.get("/metrics").text
    assert read(text, "gateway_step_difficulty_ratio_count") == 4
    assert read(text, "gateway_step_composite_ratio_count") == 4
    totals = run["totals"]
    assert read(text, "gateway_cost_dollars_total") == totals["cost_usd"]
    assert read(text, "gateway_cost_unsteered_dollars_total") == totals["cost_unsteered_usd"]
    assert read(text, "gateway_reroutes_total", state="NORMAL") == totals["models"]["gpt-4o-mini"]
    assert read(text, "gateway_event_listeners") == 1
    assert totals["saved_usd"] > 0


def test_unknown_prices_are_not_nothing(start: Start, upstream: ScriptedUpstream) -> None:
    """A call of unknown price is counted as such, and its cost as unknown."""
    server = start()
    body = {"model": "nobody-sells-this", "messages": [{"role": "user", "content": "hi"}]}
    with client_of(server) as client:
        client.post("/v1/chat/completions", json=body)
        (run,) = client.get("/api/runs").json()["runs"]
        text = client.get("/metrics").text
    assert (run["totals"]["cost_usd"], run["totals"]["unpriced_calls"]) == (None, 1)
    assert read(text, "gateway_unpriced_calls_total") == 1
    assert read(text, "gateway_cost_dollars_total") == 0


def exposed_in(text: str) -> set[str]:
    """Every name that a query may use."""
    families = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    parts = {f"{name}_{part}" for name in families for part in ("bucket", "count", "sum")}
    return families | parts | {f"{name}_total" for name in families}


def test_the_example_dashboard_reads_metrics_there_are(start: Start) -> None:
    """Every name in its queries is one that the gateway exposes."""
    with client_of(start()) as client:
        text = client.get("/metrics").text
    exposed = exposed_in(text)
    board = json.loads(GRAFANA.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 10
    for query in queries:
        named = set(re.findall(r"\bgateway_[a-z_]+", query))
        assert named, query
        assert named <= exposed, query


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_alert_rules_read_metrics_there_are(start: Start) -> None:
    """Every name in them is one that the gateway exposes, and each says what is wrong."""
    with client_of(start()) as client:
        exposed = exposed_in(client.get("/metrics").text)
    assert len(rules()) > 8
    for rule in rules():
        named = set(re.findall(r"\bgateway_[a-z_]+", rule["expr"]))
        assert named <= exposed, rule["alert"]
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("warning", "critical")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool here")
def test_promtool_accepts_the_alert_rules() -> None:
    """As Prometheus itself would read them."""
    checked = subprocess.run(
        ["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules())} rules found" in checked.stdout
