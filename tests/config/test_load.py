"""Settings: defaults, file, environment; every refusal names its key and what would be right."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import (
    DEFAULT_FILE,
    OPENAI_API_BASE,
    Secret,
    Settings,
    load_settings,
    read_file,
    settings_from_dict,
)
from gateway.config.reload import as_started, changes_at_restart
from gateway.errors import ConfigError
from tests.examples import by_day, examples


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_any_configuration_there_are_defaults() -> None:
    """No file, no variable: the gateway runs on loopback in front of the OpenAI API."""
    settings = load_settings(env={})
    assert settings == Settings()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8080)
    assert settings.default_upstream.api_base == OPENAI_API_BASE


def test_the_file_in_the_directory_is_read(tmp_path: Path) -> None:
    """`config.yaml` of the current directory, unless another is named."""
    (tmp_path / DEFAULT_FILE).write_text("server: {port: 9001}")
    (tmp_path / "other.yaml").write_text("server: {port: 9002}")
    assert load_settings(env={}).server.port == 9001
    assert load_settings(env={"GATEWAY_CONFIG": "other.yaml"}).server.port == 9002
    assert load_settings(tmp_path / "other.yaml", {}).server.port == 9002


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "null\n"])
def test_an_empty_file_is_an_error(tmp_path: Path, text: str) -> None:
    """It may be a file that somebody is about to write: without keys it would open the gateway."""
    (tmp_path / DEFAULT_FILE).write_text(text)
    with pytest.raises(ConfigError, match=r"^config\.yaml: the file is empty"):
        load_settings(env={})


@pytest.mark.parametrize("text", ["{}", "server:\n", "model_list:\n"])
def test_empty_sections_mean_defaults(tmp_path: Path, text: str) -> None:
    """A section without values is as good as none."""
    (tmp_path / DEFAULT_FILE).write_text(text)
    if "model_list" in text:
        with pytest.raises(ConfigError, match="model_list: expected a list"):
            load_settings(env={})
    else:
        assert load_settings(env={}) == Settings()


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    """`GATEWAY_SECTION__KEY` sets one key and leaves its neighbours alone."""
    (tmp_path / DEFAULT_FILE).write_text("server: {port: 9001, host: '::1'}")
    env = {
        "GATEWAY_SERVER__PORT": "9100",
        "GATEWAY_TIMEOUTS__IDLE_S": "2.5",
        "GATEWAY_ETRACES__ENABLED": "off",
        "GATEWAY_STEERING__MODE": "shadow",
        "GATEWAY_AUTH__GATEWAY_KEYS__TEAM": "gw-1",
        "GATEWAY_OTHER": "not a setting",
    }
    settings = load_settings(env=env)
    assert (settings.server.port, settings.server.host) == (9100, "::1")
    assert settings.timeouts.idle_s == 2.5
    assert settings.etraces.enabled is False
    assert settings.steering.mode == "shadow"
    assert settings.auth.secrets() == {"gateway_keys.team": "gw-1"}


def test_the_usual_base_url_is_the_upstream() -> None:
    """`OPENAI_BASE_URL` names the provider, unless the config does."""
    env = {"OPENAI_BASE_URL": "http://127.0.0.1:1234/v1"}
    assert load_settings(env=env).default_upstream.api_base == "http://127.0.0.1:1234/v1"
    own = {"default_upstream": {"api_base": "http://own/v1"}}
    assert settings_from_dict(own, env).default_upstream.api_base == "http://own/v1"
    with pytest.raises(ConfigError, match=r"'host:1' is not .*\(set by OPENAI_BASE_URL\)$"):
        settings_from_dict({}, {"OPENAI_BASE_URL": "host:1"})
    with pytest.raises(ConfigError, match=r"'own:1' is not an http\(s\) URL$"):
        settings_from_dict({"default_upstream": {"api_base": "own:1"}}, env)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sever": {}}, r"sever: unknown key; did you mean 'server'\?"),
    ({"server": {"prot": 1}}, r"server\.prot: unknown key; did you mean 'port'\?"),
    ({"server": {"zzzz": 1}}, r"server\.zzzz: unknown key; known: body_wait_s, drain_s"),
    ({"server": {"port": "many"}}, r"server\.port: expected a whole number, got the text 'many'"),
    ({"server": {"port": 1.5}}, r"server\.port: expected a whole number"),
    ({"server": {"port": True}}, r"server\.port: expected a whole number, got the value True"),
    ({"server": {"port": 70000}}, r"server\.port: must be 0 to 65535"),
    ({"server": {"port": None}}, r"server\.port: expected a whole number, got nothing"),
    ({"server": {"host": " "}}, r"server\.host: ' ': leave out .*; 0\.0\.0\.0 listens on all"),
    ({"server": {"trusted_hosts": ["http://a.b"]}}, r"server\.trusted_hosts: 'http://a\.b' is not"),
    ({"server": {"trusted_hosts": ["a*"]}}, r"server\.trusted_hosts: 'a\*' is not a host name"),
    ({"server": {"trusted_origins": ["a.b"]}}, r"server\.trusted_origins: 'a\.b' is not an origin"),
    ({"server": {"trusted_origins": ["*"]}}, r"server\.trusted_origins: '\*' is not an origin"),
    ({"server": {"trusted_origins": ["https://*"]}}, r"server\.trusted_origins: 'https://\*' is"),
    ({"server": {"trusted_origins": ["https://a.b/"]}}, r"server\.trusted_origins: .* is not"),
    ({"server": {"max_head_kb": 0}}, r"server\.max_head_kb: must be above 0"),
    ({"server": {"max_head_s": 0}}, r"server\.max_head_s: must be above 0"),
    ({"server": {"keep_alive_s": -1}}, r"server\.keep_alive_s: must be above 0"),
    ({"server": {"max_head_fields": 0}}, r"server\.max_head_fields: must be at least 1"),
    ({"steering": {"budget_action": "wrap_up"}}, r"steering\.budget_action: .* a token_budget"),
    ({"server": {"max_body_mb": 0}}, r"server\.max_body_mb: must be above 0"),
    ({"server": {"drain_s": -1}}, r"server\.drain_s: must be at least 0"),
    ({"server": {"drain_s": float("nan")}}, r"server\.drain_s: expected a number"),
    ({"server": [1]}, r"server: expected a mapping, got the list"),
    ({"storage": {"max_size_mb": float("inf")}}, r"storage\.max_size_mb: expected a number"),
    ({"logging": {"level": "inof"}}, r"logging\.level: 'inof' is not one of .*did you mean 'info'"),
    ({"timeouts": {"idle_s": "long"}}, r"timeouts\.idle_s: expected a number"),
    ({"default_upstream": {"api_base": "api.openai.com"}}, r"default_upstream\.api_base: .*URL"),
    ({"default_upstream": {"api_base": "ftp://x/v1"}}, r"default_upstream\.api_base: .*URL"),
    ({"default_upstream": {"api_base": "http://a b/v1"}}, r"default_upstream\.api_base: .*URL"),
    ({"default_upstream": {"api_base": "http://a/\n"}}, r"default_upstream\.api_base: .*URL"),
    ({"default_upstream": {"api_base": "http://[::1/v1"}}, r"default_upstream\.api_base: .*IPv6"),
    ({"default_upstream": {"api_base": "http://a:99999/v1"}}, r"default_upstream\.api_base: .*ort"),
    ({"model_list": {"a": 1}}, r"model_list: expected a list, got the mapping"),
    ({"model_list": [{"model_name": "a"}]}, r"model_list\[0\]\.litellm_params: required"),
    (
        {"model_list": [{"litellm_params": {"model": "a"}}]},
        r"model_list\[0\]\.model_name: required",
    ),
    (
        {"model_list": [{"model_name": "a", "litellm_params": {}}]},
        r"model_list\[0\]\.litellm_params\.model: required",
    ),
    (
        {"model_list": [{"model_name": "a", "litellm_params": {"model": "x", "api_base": "no"}}]},
        r"model_list\[0\]\.litellm_params\.api_base: 'no' is not",
    ),
    (
        {"model_list": [{"model_name": "a", "litellm_params": {"model": "x"}, "lan": "auto"}]},
        r"model_list\[0\]\.lan: unknown key; did you mean 'lane'\?",
    ),
    ({"router": {"allowed_fails": 0}}, r"router\.allowed_fails: must be at least 1"),
    ({"router": {"fallbacks": [["a"]]}}, r"router\.fallbacks\[0\]: expected a mapping"),
    ({"router": {"fallbacks": [{"a": "b"}]}}, r"router\.fallbacks\[0\]\.a: expected a list"),
    ({"fsm": {"fast_threshold": 2}}, r"fsm\.fast_threshold: "),
    ({"fsm": {"fast_threshold": 0.7}}, r"fsm\.fast_threshold: .*not below"),
    ({"fsm": {"slow_window": 2.5}}, r"fsm\.slow_window: expected a whole number"),
    ({"fsm": {"skip_window": True}}, r"fsm\.skip_window: expected a whole number"),
    ({"fsm": {"hysteresis_margin": float("nan")}}, r"fsm\.hysteresis_margin: expected a number"),
    ({"fsm": {"skip_exit": "leave"}}, r"fsm\.skip_exit: 'leave' is not one of hold, demote, abs"),
    ({"monitors": {"suite": "best"}}, r"monitors\.suite: 'best' is not one of reference, robust"),
    ({"monitors": {"weights": {"hedge": float("nan")}}}, r"monitors\.weights\.hedge: expected a"),
    ({"monitors": {"robust": {"recovery": "x"}}}, r"monitors\.robust\.recovery: expected a number"),
    ({"difficulty": {"scorer": "oracle"}}, r"difficulty\.scorer: 'oracle' is not one of heuristic"),
    ({"etraces": {"e2_when": "sometimes"}}, r"etraces\.e2_when: 'sometimes' is not one of always,"),
    ({"etraces": {"e3_when": "sometimes"}}, r"etraces\.e3_when: 'sometimes' is not one of tools,"),
    ({"injection": {"placement": "x"}}, r"injection\.placement: 'x' is not one of auto, system, t"),
    ({"injection": {"lifetime": "x"}}, r"injection\.lifetime: 'x' is not one of run, call"),
    ({"routing": {"policy": "best"}}, r"routing\.policy: 'best' is not one of states, learned"),
    ({"conversations": {"id_headers": "x-a"}}, r"conversations\.id_headers: expected a list"),
    (
        {"conversations": {"fingerprint": "?"}},
        r"conversations\.fingerprint: expected true or false",
    ),
    ({"conversations": {"run_boundary": "idle"}}, r"conversations\.run_boundary: must be one of"),
    ({"experiment": {"arms": {"on": float("inf")}}}, r"experiment\.arms\.on: expected a number"),
    ({"model_routing": {"FASTER": "x"}}, r"model_routing\.FASTER: not one of FAST"),
    ({"difficulty": {"scorer": "judge"}}, r"difficulty\.judge\.model: needed by scorer judge"),
    (
        {"difficulty": {"scorer": "judge", "judge": {"model": "m"}}},
        r"difficulty\.judge: 40 ms is too short .*; raise steering\.deadline_ms",
    ),
    ({"difficulty": {"judge": {"deadline_share": 1}}}, r"difficulty\.judge\.deadline_share: must"),
    ({"experiment": {"arms": {"random": 1}}}, r"experiment\.arms\.random: not one of"),
    ({"experiment": {"arms": {"on": -1}}}, r"experiment\.arms\.on: must be 0 or more"),
    ({"client_hooks": {"share": 3}}, r"client_hooks\.share: expected a number in \[0, 1\], got 3"),
    ({"client_hooks": {"share": -0.1}}, r"client_hooks\.share: expected a number in \[0, 1\]"),
    (
        {"budgets": [{"name": "a", "scope": "run", "limits": {"usd": float("inf")}}]},
        r"budgets\[0\]\.limits\.usd: expected a number, got the number inf",
    ),
]


@pytest.mark.parametrize(("raw", "says"), REFUSED, ids=[str(raw)[:60] for raw, _ in REFUSED])
def test_what_is_wrong_is_refused_with_its_path(raw: dict[str, Any], says: str) -> None:
    """The message begins with the key path, and helps."""
    with pytest.raises(ConfigError, match=f"^{says}"):
        settings_from_dict(raw)


def test_the_environment_is_as_strict() -> None:
    """A misspelt variable is refused like a misspelt key."""
    with pytest.raises(ConfigError, match=r"^server\.prot: unknown key; did you mean 'port'"):
        settings_from_dict({}, {"GATEWAY_SERVER__PROT": "1"})


def test_a_number_among_fixed_values_is_set_from_the_environment() -> None:
    """A variable is text; the value is the number that it stands for."""
    settings = settings_from_dict({}, {"GATEWAY_CONTROL__STOP_STATUS": "401"})
    assert settings.control.stop_status == 401
    with pytest.raises(ConfigError, match=r"^control\.stop_status: '403' is not one of 429, 401"):
        settings_from_dict({}, {"GATEWAY_CONTROL__STOP_STATUS": "403"})


def test_lists_and_maps_are_set_from_the_environment() -> None:
    """Single keys of a map, a state in capitals as everywhere, or all of it as YAML or JSON."""
    entry = '{model_name: big, litellm_params: {model: openai/gpt-4o, api_key: "${MINE}"}}'
    env = {
        "MINE": "sk-mine",
        "GATEWAY_MODEL_ROUTING__SLOW": "big",
        "GATEWAY_INJECTION__COOLDOWN_STEPS__FAST": "9",
        "GATEWAY_MODEL_ROUTING_BY_MODEL": '{"gpt-4o": {"SLOW": "gpt-4.1"}}',
        "GATEWAY_MODEL_LIST": f"[{entry}]",
        "GATEWAY_ROUTER__FALLBACKS": "[{big: [small]}]",
        "GATEWAY_MONITORS__MONITORS": "[streak, hedge]",
        "GATEWAY_MONITORS__WEIGHTS__STREAK": "0.4",
        "GATEWAY_EXPERIMENT__ARMS": "{on: 0.5, shadow: 0.5}",
    }
    settings = settings_from_dict({"model_routing": {"FAST": "small"}}, env)
    assert settings.model_routing == {"FAST": "small", "SLOW": "big"}
    assert settings.injection.cooldown_steps == {"FAST": 9}
    assert settings.model_routing_by_model == {"gpt-4o": {"SLOW": "gpt-4.1"}}
    assert settings.model_list[0].litellm_params["api_key"] == "sk-mine"
    assert isinstance(settings.model_list[0].litellm_params["api_key"], Secret)
    assert settings.router.fallbacks == ({"big": ("small",)},)
    assert settings.monitors.monitors == ("streak", "hedge")
    assert settings.monitors.weights == {"streak": 0.4}
    assert settings.experiment.arms == {"on": 0.5, "shadow": 0.5}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[{", r"model_list: neither YAML nor JSON: .*\(set by GATEWAY_MODEL_LIST\)"),
        ("big", r"model_list: expected a list, got the text 'big' \(set by GATEWAY_MODEL_LIST\)"),
    ],
)
def test_a_list_in_the_environment_that_is_none(text: str, says: str) -> None:
    """The variable is named."""
    with pytest.raises(ConfigError, match=f"^{says}"):
        settings_from_dict({}, {"GATEWAY_MODEL_LIST": text})


@pytest.mark.parametrize(
    ("text", "says"),
    by_day(
        [
            ("server: {port: 1", r"config\.yaml, line 1, column \d+: "),
            ("a: 1\n b: 2", r"config\.yaml, line 2, column 3: "),
            ("a: ${X\nb: [1\n", r"config\.yaml, line 3, column 1: .*, in what begins in line 2$"),
            ("a: {b: 1\r", r"config\.yaml, line 2, column 1: .*, in what begins in line 1$"),
            ("- 1", r"config\.yaml: expected a mapping of keys to values at the top"),
            ("a: *b", r"config\.yaml, line 1, column 4: a value that begins with \*"),
            (
                "a: !!python/object:os.system {}",
                r"config\.yaml, line 1, column 4: a value that begins with !",
            ),
            ("auth", r"config\.yaml: expected a mapping of keys to values at the top"),
            ("a: 1\n---\na: 1", r"config\.yaml, line 2, column 1: a second document begins"),
            ("auth: {admin_key: a\0}", r"config\.yaml: unacceptable character #x0000"),
            ("server: {host: 2024-13-45}", r"config\.yaml: month must be"),
            ("[" * 3000, r"config\.yaml: nested too deeply"),
            ("auth: &a {gateway_keys: *a}", r"config\.yaml: Circular reference"),
        ],
        3,
    ),
)
def test_broken_yaml_names_file_and_place(text: str, says: str) -> None:
    """The error says where in the file to look."""
    Path(DEFAULT_FILE).write_text(text)
    with pytest.raises(ConfigError, match=f"^{says}"):
        load_settings(env={})


AUTH = "auth: {gateway_keys: {a: gw-1}}"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            f"model_list:\n- model_name: m\n  litellm_params:\n    model: m\n    {AUTH}",
            "line 5: model_list[0].litellm_params.auth",
        ),
        (f"environment_variables:\n  A: b\n  {AUTH}", "line 3: environment_variables.auth"),
        (f"general_settings:\n  {AUTH}", "line 2: general_settings.auth"),
        ("litellm_settings:\n  budgets: []", "line 2: litellm_settings.budgets"),
        ("general_settings: [master_key]", "line 1: general_settings: expected a mapping"),
        ("server:\n  auth: {}", "line 2: server.auth: unknown key"),
        ("auth:\ngateway_keys: {a: gw-1}", "line 2: gateway_keys: unknown key"),
        (
            "auth: {admin_key: '${ADMIN'}",
            "auth.admin_key: a reference to a variable is written ${NAME}",
        ),
        ("auth: {gateway_keys: {a: os.env}}", "auth.gateway_keys.a: a reference to a variable"),
        (
            "general_settings: {master_key: os.environ}",
            "a reference to a variable is written ${NAME}",
        ),
        ("auth: {gateway_keys: {a: '${NONE:-}'}}", "auth.gateway_keys.a: may not be empty"),
    ],
)
def test_what_looks_as_if_it_closed_something_is_refused(text: str, place: str) -> None:
    """A section that is indented differently, and a key whose reference was cut."""
    Path(DEFAULT_FILE).write_text(text)
    with pytest.raises(ConfigError, match=re.escape(place)):
        load_settings(env={})


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read(name: str) -> None:
    """A named file has to be there."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(name, {})
    Path("latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(ConfigError, match=r"latin\.yaml: cannot be read"):
        read_file("latin.yaml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("server: {}\nlogging: {}\nserver: {}", "line 3, column 1: server is set twice"),
        ("server:\n  port: 1\n  port: 2", "line 3, column 3: server.port is set twice"),
        ("model_list: [{model_name: a, model_name: b}]", "model_list[0].model_name is set twice"),
    ],
)
def test_a_key_that_is_set_twice(text: str, says: str) -> None:
    """YAML would take the last one without a word."""
    Path(DEFAULT_FILE).write_text(text)
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_settings(env={})


def test_anchors_are_no_repetition() -> None:
    """What is written once and used twice is allowed, and so is what is merged in."""
    entry = "&a {model_name: a, litellm_params: {model: openai/x}}"
    Path(DEFAULT_FILE).write_text(f"model_list: [{entry}, *a, {{<<: *a, model_name: b}}]")
    assert [d.model_name for d in load_settings(env={}).model_list] == ["a", "a", "b"]


def test_a_wrong_variable_is_named() -> None:
    """An error about a key that is not in the file names the variable that set it."""
    with pytest.raises(ConfigError, match=r"server\.prt: .* \(set by GATEWAY_SERVER__PRT\)"):
        load_settings(env={"GATEWAY_SERVER__PRT": "1"})
    Path(DEFAULT_FILE).write_text("server: {port: x}")
    with pytest.raises(ConfigError, match=r"got the text 'x'$"):
        load_settings(env={"GATEWAY_SERVER__HOST": "::"})


def test_words_that_yaml_takes_for_booleans() -> None:
    """`mode: on` without quotes means the word."""
    Path(DEFAULT_FILE).write_text("steering: {mode: off}\nexperiment: {arms: {on: 1, off: 3}}")
    settings = load_settings(env={})
    assert settings.steering.mode == "off"
    assert settings.experiment.arms == {"on": 1, "off": 3}


def test_references_are_resolved_anywhere() -> None:
    """All three forms, in nested values and within text."""
    env = {"HOST": "api.example.com", "KEY": "sk-1", "EMPTY": ""}
    params = {
        "model": "openai/x",
        "api_base": "https://${HOST}/v1",
        "api_key": "os.environ/KEY",
        "extra_headers": {"X-A": "${MISSING:-fallback}", "X-B": "${EMPTY}", "X-C": "$HOME ${}"},
    }
    raw = {"model_list": [{"model_name": "m", "litellm_params": params}]}
    (deployment,) = settings_from_dict(raw, env).model_list
    assert deployment.litellm_params["api_base"] == "https://api.example.com/v1"
    assert deployment.litellm_params["api_key"] == "sk-1"
    headers = deployment.litellm_params["extra_headers"]
    assert headers == {"X-A": "fallback", "X-B": "", "X-C": "$HOME ${}"}


@pytest.mark.parametrize("reference", ["os.environ/NOPE", "${NOPE}"])
def test_a_missing_variable_is_named(reference: str) -> None:
    """A reference to nothing is an error, with its path."""
    with pytest.raises(ConfigError, match=r"^auth\.admin_key: environment variable 'NOPE' is not"):
        settings_from_dict({"auth": {"admin_key": reference}})


def test_secrets_do_not_show_themselves() -> None:
    """No secret is in the representation of the settings, wherever it was set."""
    raw = {
        "default_upstream": {"api_key": "hush-1"},
        "auth": {"admin_key": "hush-2", "gateway_keys": {"t": "hush-3"}},
        "embedding": {"api_key": "hush-4"},
        "model_list": [
            {
                "model_name": "m",
                "litellm_params": {
                    "model": "bedrock/x",
                    "api_key": "hush-5",
                    "aws_secret_access_key": "hush-6",
                    "vertex_credentials": "hush-7",
                    "azure_ad_token": "hush-8",
                },
            }
        ],
    }
    settings = settings_from_dict(raw)
    assert "hush" not in repr(settings)
    assert settings.default_upstream.api_key == "hush-1"
    assert isinstance(settings.model_list[0].litellm_params["api_key"], Secret)


def test_settings_cannot_be_changed() -> None:
    """What requests in flight see stays as it was."""
    with pytest.raises(AttributeError):
        Settings().server.port = 1  # type: ignore[misc]


def test_the_given_mapping_is_left_alone() -> None:
    """Reading settings does not write into what they are read from."""
    raw: dict[str, Any] = {
        "auth": {},
        "router": {},
        "default_upstream": {},
        "general_settings": {"master_key": "k"},
        "router_settings": {"num_retries": 4},
    }
    before = repr(raw)
    settings_from_dict(raw, {"OPENAI_BASE_URL": "http://x/v1", "GATEWAY_ROUTER__BACKOFF_S": "1"})
    assert repr(raw) == before


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
SECTIONS = ["server", "timeouts", "default_upstream", "model_list", "router", "auth", "fsm"]
SECTIONS += ["monitors", "experiment", "router_settings", "general_settings", "litellm_settings"]
KEYS = ["port", "host", "api_base", "api_key", "fallbacks", "gateway_keys", "weights", "arms"]
KEYS += ["model_name", "litellm_params", "master_key", "num_retries", "default_fallbacks"]


@examples(40)
@given(
    st.dictionaries(
        st.sampled_from(SECTIONS),
        anything | st.dictionaries(st.sampled_from(KEYS), anything) | st.lists(anything),
    )
)
def test_whatever_is_in_a_file_it_loads_or_is_refused(raw: dict[str, Any]) -> None:
    """No value leads to anything but settings or a ConfigError."""
    with contextlib.suppress(ConfigError):
        settings_from_dict(raw, {})


def test_what_a_reload_does_not_change_is_named() -> None:
    """Keys that are read at the start only are named when they differ; others are not."""
    changed = settings_from_dict(
        {
            "server": {"max_head_kb": 17},
            "steering": {"mode": "off", "max_transcript_memory_mb": 17},
            "storage": {"retention_days": 17},
        }
    )
    assert changes_at_restart(Settings(), Settings()) == []
    waiting = changes_at_restart(Settings(), changed)
    assert waiting == ["server.max_head_kb", "steering.max_transcript_memory_mb", "storage"]
    taken = as_started(Settings(), changed)
    assert (changes_at_restart(Settings(), taken), taken.steering.mode) == ([], "off")
