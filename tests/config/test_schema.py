"""The JSON Schema for editors accepts what loads, and refuses what `check-config` refuses."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli import main
from gateway.config import settings_from_dict
from gateway.errors import ConfigError
from tests.config import test_faults, test_litellm_form
from tests.docs.test_examples import DOCUMENTS, blocks, variables
from tests.examples import examples

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/reference/config.schema.json").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
FULL = """
model_list:
- model_name: a
  rpm: 3
  litellm_params: {model: openai/x, api_key: os.environ/K, weight: 2, input_cost_per_token: 1e-6}
  model_info: {output_cost_per_token: 0.000002, supports_vision: true}
- {model_name: b, lane: native, litellm_params: {model: x, api_base: "http://h/v1"}, weight: 0.5}
router_settings: {num_retries: 3, timeout: null, routing_strategy: simple}
general_settings: {master_key: a-key-of-theirs}
guardrails: [{guardrail_name: g}]
budgets:
- name: per-task
  scope: tree
  limits: {usd: 5, calls: "300"}
  ladder: [{at: 0.8, do: warn}, {at: 0.9, cheaper: a}, {at: 1, do: stop}]
auth: {gateway_keys: {t: "${K}"}, rights: {t: {models: ["gpt-*"]}}}
control: {stop_status: 401}
steering: {mode: on, token_budget: null}
storage: {path: ":memory:", retention_days: "${DAYS:-3}"}
fsm: {fast_threshold: 0.8, slow_threshold: 0.9, skip_threshold: 1}
injection: {cooldown_steps: {FAST: 5}}
experiment: {arms: {on: 1, off: 1}}
alerts: {sinks: [{name: ops, url: "https://h/x", kind: slack}], rules: {budget: [0.5]}}
difficulty: null
model_routing: {SLOW: a}
"""


def plain(value: Any) -> Any:
    """YAML as JSON has it: keys are text, which `on` and `off` are for the settings, too."""
    if isinstance(value, dict):
        words = {True: "on", False: "off"}
        return {
            words.get(k, str(k)) if isinstance(k, bool) else str(k): plain(v)
            for k, v in value.items()
        }
    return [plain(each) for each in value] if isinstance(value, list) else value


def faults(raw: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(plain(raw))]


def refusals(raw: dict[str, Any]) -> list[str]:
    try:
        settings_from_dict(raw, {"K": "a-secret-of-some-length"})
    except ConfigError as exc:
        return list(exc.faults)
    return []


def test_it_is_a_schema_and_the_shipped_file_names_it() -> None:
    """The comment that editors read leads to it, and the shipped config is valid."""
    VALIDATOR.check_schema(SCHEMA)
    text = (ROOT / "config.yaml").read_text()
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert named
    assert (ROOT / named[1]).samefile(ROOT / "docs/reference/config.schema.json")
    assert faults(yaml.safe_load(text)) == []


def test_the_installed_package_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a look at any config."""
    assert main(["check-config", "--schema", "--config", "no-such-file.yaml"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA


def test_valid_configs_are_valid() -> None:
    """Those of the documents, LiteLLM's form, and one with a value of each type."""
    shown = [text for each in DOCUMENTS for text in blocks(each, "yaml")]
    found = [yaml.safe_load(text) for text in [FULL, test_litellm_form.PROXY_FILE]]
    env = variables("".join(shown))
    for text in shown:
        raw = next(iter(yaml.safe_load_all(text)), None)
        if isinstance(raw, dict) and not {"services", "apiVersion", "groups"} & set(raw):
            try:
                settings_from_dict(raw, env)
            except ConfigError:
                continue
            found.append(raw)
    assert len(found) > 10
    assert [faults(raw) for raw in found] == [[]] * len(found)


@pytest.mark.parametrize(
    "text",
    [
        "server: {prot: 1}",
        "sever: {}",
        "server: [1]",
        "server: {port: x}",
        "server: {port: 70000}",
        "server: {port: 1.5}",
        "server: {trusted_hosts: localhost}",
        "steering: {mode: onn}",
        "steering: {token_budget: 0.5}",
        "storage: {store_content: maybe}",
        "storage: {reader_threads: 65}",
        "model_list: null",
        "model_list: [{model_name: a}]",
        "model_list: [{model_name: a, litellm_params: {}}]",
        "model_list: [{model_name: a, lan: auto, litellm_params: {model: x}}]",
        "model_list: [{model_name: a, litellm_params: {model: x, auth: {}}}]",
        "model_routing: {FASTER: a}",
        "model_routing: {FAST: null}",
        "budgets: [{name: a, scope: tree, limits: {dollars: 1}}]",
        "alerts: {rules: {budget: 0.5}}",
        "general_settings: [master_key]",
        "router_settings: {num_retries: many}",
        test_faults.FAULTY,
    ],
)
def test_faults_are_faults(text: str) -> None:
    """Unknown keys, wrong types, words that are not in a list, numbers out of their range."""
    raw = yaml.safe_load(text)
    assert refusals(raw)
    assert faults(raw)


STRANGE: list[Any] = [None, True, -1, 0, 1, 3, 0.5, 1e9, "", "x", "on", "7", "1e-6", [], ["x"], [1]]
STRANGE += [{}, {"x": 1}, {"x": "y"}, "os.environ/K", "${K}", "${DAYS:-3}"]
OPEN = re.compile(r"^(monitors\.(profile|monitors|alarms|weights)|embedding\.embedder)\b")
BY_SHAPE = re.compile(
    r"unknown key|expected (?!a number in)|is not one of|required|may not be null"
)
# Lists of words to which a config can add, or that have a pattern.
# A limit that depends on another key is none of the schema; a text with a variable is known later.
BASE = plain(yaml.safe_load(FULL))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key and item, at any depth."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [found for key, each in items for found in [(*path, key), *places(each, (*path, key))]]


def every_section() -> Any:
    """`BASE` and all sections of the shipped config, whose values are the defaults. `router` wins
    over LiteLLM's `router_settings`, of which nothing would be read beside it."""
    found = plain(yaml.safe_load((ROOT / "config.yaml").read_text())) | BASE
    del found["router_settings"]
    return found


@examples(200)
@given(st.sampled_from(places(every_section())), st.sampled_from(STRANGE), st.booleans())
def test_a_changed_config_is_judged_alike(path: tuple[Any, ...], value: Any, key: bool) -> None:
    """A value in the place of another, or an unknown key beside it: what loads is valid, and what
    is refused for its shape is invalid."""
    raw = copy.deepcopy(every_section())
    node = raw
    for each in path[:-1]:
        node = node[each]
    if key and isinstance(node, dict):
        node[f"{path[-1]}_"] = value
    else:
        node[path[-1]] = value
    refused = refusals(raw)
    shape = [fault for fault in refused if BY_SHAPE.search(fault) and not OPEN.match(fault)]
    if not refused:
        assert faults(raw) == []
    elif shape and "$" not in str(value) and "os.env" not in str(value):
        assert faults(raw), refused
