"""What ships for Kubernetes and systemd: it names what the gateway has.

The chart is rendered with Helm's own library (`helm-python-sdk`) and its manifests are checked
against Kubernetes' schemas (`kubernetes-validate`), where these are installed; neither is in the
lock file, because the library is 75 MB.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway import __version__
from gateway.app import build_app
from gateway.config import settings_from_dict
from gateway.config.load import load_settings

ROOT = Path(__file__).parents[1]
CHART = ROOT / "packages" / "helm" / "steering-gateway"
PLAIN = ROOT / "examples" / "kubernetes" / "gateway.yaml"
UNIT = ROOT / "examples" / "systemd" / "steering-gateway.service"
SOURCES = [*sorted((CHART / "templates").iterdir()), PLAIN, UNIT]

VALUES = {
    "GATEWAY_SERVER__DRAIN_S": "2",
    "GATEWAY_SERVER__WORKERS": "2",
    "GATEWAY_STORAGE__SYNCHRONOUS": "full",
    "GATEWAY_STORAGE__URL": "postgresql://host/name",
}
DATABASE = {"database": {"existingSecret": "db"}}
EVERYTHING = {
    **DATABASE,
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"enabled": True, "egress": [{"ports": [{"port": 443}]}]},
    "service": {"annotations": {"a": "b"}},
    "existingSecret": "keys",
    "config": {"auth": {"admin_key": "${KEY}"}, "server": {"workers": 2}},
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "tolerations": [{"operator": "Exists"}],
    "podLabels": {"team": "a"},
}
RENDERED = [
    pytest.param({}, {"PersistentVolumeClaim", "Deployment", "Service", "ConfigMap"}, id="file"),
    pytest.param(
        {"persistence": {"enabled": False}}, {"Deployment", "Service", "ConfigMap"}, id="no volume"
    ),
    pytest.param(
        {**DATABASE, "replicaCount": 2},
        {"Deployment", "Service", "ConfigMap", "PodDisruptionBudget"},
        id="two",
    ),
    pytest.param(
        EVERYTHING,
        {"Deployment", "Service", "ConfigMap", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
        | {"NetworkPolicy", "ServiceMonitor"},
        id="everything",
    ),
]
REFUSED = [
    ({"replicaCount": 2}, "need PostgreSQL"),
    ({"autoscaling": {"enabled": True}}, "need PostgreSQL"),
    ({"config": {"auth": {"admin_key": "secret"}}}, "config.auth.admin_key"),
    ({"config": {"auth": {"gateway_keys": {"a": "secret"}}}}, "config.auth.gateway_keys.a"),
    ({"config": {"storage": {"url": "postgresql://u:p@h/d"}}}, "config.storage.url"),
    (
        {"config": {"model_list": [{"model_name": "a", "litellm_params": {"api_key": "sk"}}]}},
        "config.model_list[0].litellm_params.api_key",
    ),
    ({"replicas": 2}, "'replicas' not allowed"),
]


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The manifests that Helm makes of the chart."""
    helm = pytest.importorskip("helm_python")
    with helm.Chart.load(CHART) as chart:
        files = chart.render(values, name="demo", namespace="prod")
    texts = (text for name, text in files.items() if name.endswith(".yaml"))
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_probes_and_variables_exist(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path that is probed or scraped is a route; every variable sets something."""
    text = source.read_text()
    routes = {route.path for route in build_app(settings_from_dict({})).app.routes}
    assert set(re.findall(r"\bpath: (/\w+)", text)) <= routes
    for name in set(re.findall(r"\bGATEWAY_[A-Z_]+\b", text)):
        monkeypatch.setenv(name, VALUES.get(name, "words"))
    load_settings(None)


def test_the_chart_is_of_this_version_and_its_values_fit_their_schema() -> None:
    """The image of the chart is that of the package; every value has a type, and a default."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    assert {*schema["properties"]} - {"global"} == {*values}


@pytest.mark.parametrize(("values", "kinds"), RENDERED)
def test_the_chart_gives_manifests_that_kubernetes_knows(
    values: dict[str, Any], kinds: set[str]
) -> None:
    """Each kind once, and valid in the oldest and the newest version of Kubernetes at hand."""
    made = rendered(values)
    assert sorted(each["kind"] for each in made) == sorted(kinds)
    kubernetes = pytest.importorskip("kubernetes_validate")
    for each in made:
        if each["kind"] != "ServiceMonitor":  # of an operator
            for version in ("1.25", kubernetes.latest_version()):
                kubernetes.validate(each, version, strict=True)


def test_a_pod_may_write_only_where_it_must_and_has_time_to_end() -> None:
    """With a file and with a database; keys are references, and a changed config is a new pod."""
    for values in ({}, EVERYTHING):
        [deployment] = [each for each in rendered(values) if each["kind"] == "Deployment"]
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        for each in (*pod["initContainers"], *pod["containers"]):
            assert each["securityContext"]["readOnlyRootFilesystem"]
            writable = {at["mountPath"] for at in each["volumeMounts"] if not at.get("readOnly")}
            assert writable == {"/data", "/tmp"}  # noqa: S108 - paths of the image
        [drain] = [each for each in each["env"] if each["name"] == "GATEWAY_SERVER__DRAIN_S"]
        pause = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1]
        assert pod["terminationGracePeriodSeconds"] > float(drain["value"]) + float(pause)

    def checksum(config: dict[str, Any]) -> str:
        [made] = [each for each in rendered({"config": config}) if each["kind"] == "Deployment"]
        return str(made["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum({}) != checksum({"steering": {"mode": "off"}})


@pytest.mark.parametrize(("values", "reason"), REFUSED)
def test_the_chart_refuses(values: dict[str, Any], reason: str) -> None:
    """Several gateways on one file, a key among the values, and a misspelt value."""
    with pytest.raises(Exception, match=re.escape(reason)):
        rendered(values)


def test_the_chart_has_no_findings() -> None:
    """`helm lint` finds nothing but that there is no icon."""
    found = pytest.importorskip("helm_python").lint(CHART)
    assert not found["errors"]
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


def test_the_unit_is_valid_and_closed(tmp_path: Path) -> None:
    """systemd reads it without a warning, gives it more time than the drain, and rates it 1.1 or
    better of 10 (less is better)."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = UNIT.read_text()
    [limit] = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert float(limit) > settings_from_dict({}).server.drain_s
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("/opt/steering-gateway/bin/gateway", shutil.which("true") or ""))
    checked = _analyzed("verify", unit)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    rated = _analyzed("security", "--offline=true", "--threshold=11", unit)
    assert rated.returncode == 0, rated.stdout[-200:]


def _analyzed(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
