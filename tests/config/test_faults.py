"""Everything that is wrong with a config is reported at once, each fault with its key and line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config import load_settings
from gateway.errors import ConfigError

FAULTY = """\
server:
  port: 70000
  prot: 1
  drain_s: -1
steering: {mode: onn}
model_list:
  - {model_name: a, litellm_params: {}}
  - model_name: b
    lan: auto
    litellm_params: {model: openai/x, api_key: os.environ/NOT_SET_ANYWHERE}
router_settings: {num_retries: many}
auth:
  gateway_keys: {acme: one-long-key-of-both, zeta: one-long-key-of-both}
server: {port: x}
"""


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def faults_of(text: str, env: dict[str, str] | None = None) -> list[str]:
    Path("config.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_settings(env=env or {})
    return list(refused.value.faults)


def test_all_faults_are_told_in_the_order_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those of a whole: an unset variable, LiteLLM's names, a key of two tenants."""
    Path("config.yaml").write_text(FAULTY.replace("server: {port: x}\n", ""))
    assert main(["check-config"]) == 2
    *told, count = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("config.yaml, line ") for line in told] == [
        "2: server.port: must be 0 to 65535, got 70000",
        "3: server.prot: unknown key; did you mean 'port'?",
        "4: server.drain_s: must be at least 0, got -1",
        "5: steering.mode: 'onn' is not one of on, shadow, off; did you mean 'on'?",
        "7: model_list[0].litellm_params.model: required",
        "9: model_list[1].lan: unknown key; did you mean 'lane'?",
        "11: router.num_retries: expected a whole number, got the text 'many'",
        "13: auth.gateway_keys.zeta: the same key as that of 'acme'",
    ]
    assert count == "config.yaml: 8 faults"
    assert main(["check-config", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["problems"] == told


def test_a_deployment_may_name_a_variable_that_is_not_set(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As in LiteLLM's examples: the others serve, a warning names it, and its calls reach nobody:
    neither the default address nor a client's own key stands in for what is missing."""
    Path("config.yaml").write_text(
        "model_list:\n"
        "- {model_name: a, litellm_params: {model: openai/a, api_key: os.environ/NO_KEY}}\n"
        "- {model_name: b, litellm_params: {model: azure/b, api_base: 'https://${NO_HOST}/v1',"
        " api_key: sk-1}}\n"
    )
    assert main(["check-config"]) == 0
    told = capsys.readouterr().out
    assert (
        "model_list[0].litellm_params.api_key: environment variable 'NO_KEY' is not set: "
        "calls of 'a' fail there"
    ) in told
    assert "model_list[1].litellm_params.api_base: environment variable 'NO_HOST'" in told
    first, second = load_settings(env={}).model_list
    assert first.litellm_params["api_key"] == "https://unset.invalid/NO_KEY"
    assert second.litellm_params["api_base"] == "https://unset.invalid/NO_HOST/v1"


def test_the_model_of_a_deployment_and_other_sections_must_be_set() -> None:
    """A proxy without its master key would be open to everybody."""
    text = (
        "model_list: [{model_name: a, litellm_params: {model: os.environ/NO_MODEL}}]\n"
        "general_settings: {master_key: os.environ/NO_KEY}\n"
    )
    assert [line.partition(": environment")[0] for line in faults_of(text)] == [
        "config.yaml, line 1: model_list[0].litellm_params.model",
        "config.yaml, line 2: auth.admin_key",
        "config.yaml, line 2: auth.gateway_keys.default",
    ]


def test_a_repeated_key_hides_no_other_fault() -> None:
    """YAML takes the last one; what is wrong besides is told as well."""
    first, *others = faults_of(FAULTY)
    assert first.startswith("config.yaml, line 14, column 1: server is set twice")
    assert any("line 5: steering.mode" in fault for fault in others)


def test_a_refused_value_is_not_told_twice() -> None:
    """Neither as its reference and its value, nor by a check that then sees the default."""
    text = "fsm: {fast_threshold: much, slow_threshold: 0.1}\nserver: {port: '${NOT_SET}'}"
    assert faults_of(text) == [
        "config.yaml, line 1: fsm.fast_threshold: expected a number, got the text 'much'",
        "config.yaml, line 2: server.port: environment variable 'NOT_SET' is not set",
    ]


def test_deployments_are_checked_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Each that nothing can be sent to has a line, also next to a fault of another section."""
    entries = [f"- {{model_name: {n}, litellm_params: {{model: nobody/{n}}}}}" for n in "ab"]
    Path("config.yaml").write_text("\n".join(["sever: {}", "model_list:", *entries]))
    assert main(["check-config"]) == 2
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in told[:-1]] == [
        f"config.yaml, line {n}" for n in (1, 3, 4)
    ]


def test_variables_are_told_by_their_names() -> None:
    """They have no line; the file's faults follow."""
    env = {"GATEWAY_SERVER__PRT": "1", "GATEWAY_MODEL_LIST": "[{"}
    variables, unknown, port = faults_of("server: {port: x}", env)
    assert variables.endswith("(set by GATEWAY_MODEL_LIST)")
    assert unknown.endswith("(set by GATEWAY_SERVER__PRT)")
    assert port == "config.yaml, line 1: server.port: expected a whole number, got the text 'x'"


def test_a_command_prints_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    """`serve` refuses to start with all of them."""
    Path("config.yaml").write_text("server: {port: x}\nsever: {}")
    assert main(["serve"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[:2] for line in told] == [("gateway", ": ")] * 2


@pytest.mark.parametrize("price", ["cheap", "-1e-6", "true", "[1]", ".nan", ".inf", "1e400"])
@pytest.mark.parametrize("part", ["litellm_params: {model: openai/x, ", "model_info: {"])
def test_a_price_that_is_no_amount_is_refused(part: str, price: str) -> None:
    """Of a deployment, in either of its parts, by key and line."""
    entry = "litellm_params: {model: openai/x}" if part.startswith("model_info") else "weight: 1"
    text = f"model_list:\n- model_name: a\n  {entry}\n  {part}output_cost_per_token: {price}}}\n"
    (fault,) = faults_of(text)
    where = part.partition(":")[0]
    assert fault.startswith(f"config.yaml, line 4: model_list[0].{where}.output_cost_per_token: ")
    assert "expected a number, 0 or more, got" in fault
    assert price.strip(".[]").lower() in fault.lower().replace("-1e-06", "-1e-6")


@pytest.mark.parametrize("price", ["1e-6", "0.000002", "0", "3.0E-6", "null", "'${PRICE}'"])
def test_every_form_of_a_price_is_taken(price: str) -> None:
    """YAML reads some of them as text, and a variable is text, too."""
    params = f"{{model: openai/x, input_cost_per_token: {price}}}"
    Path("config.yaml").write_text(f"model_list: [{{model_name: a, litellm_params: {params}}}]")
    assert load_settings(env={"PRICE": "2e-6"}).model_list


def test_a_database_that_cannot_be_written_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """A folder, in a file, and in a folder that may not be written, by key and line."""
    Path("taken").touch()
    Path("folder").mkdir()
    Path("closed").mkdir(mode=0o555)
    paths = {"folder": "a folder, not a file", "taken/gateway.db": "a file, not a folder"}
    if not os.access("closed", os.W_OK):  # root may write everywhere
        paths["closed/new/gateway.db"] = "cannot be written"
    for path, problem in paths.items():
        Path("config.yaml").write_text(f"server: {{}}\nstorage:\n  path: {path}\n")
        assert main(["check-config"]) == 2
        said = capsys.readouterr().out
        assert re.search(rf"config\.yaml, line 3: storage\.path: '.*' .*{problem}", said)


def test_a_spool_that_cannot_be_written_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """The gateway works without it, and would lose records when it is killed."""
    url = "postgresql://user@localhost/gateway"
    Path("taken").touch()
    for path in ("taken", "taken/spool"):
        Path("config.yaml").write_text(f"storage:\n  url: {url}\n  spool_path: {path}\n")
        assert main(["check-config"]) == 0
        said = capsys.readouterr().out
        assert "warning: config.yaml, line 3: storage.spool_path: '" in said
    Path("config.yaml").write_text(f"storage: {{url: {url}, spool_path: new/spool}}\n")
    assert main(["check-config"]) == 0
    assert "spool_path" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("server:\n\tport: 1", "line 2, column 1: a tab; YAML is indented with spaces"),
        ("auth: {admin_key: $ADMIN_KEY}", "a reference to a variable is written ${NAME}"),
        ("port: 80", "port: unknown key; it stands in 'server'"),
        ("mode: x", "mode: unknown key; it stands in 'steering'"),
        ("budgets: [{name: a, scope: run, usd: 5}]", "usd: unknown key; it stands in 'limits'"),
        ("auth: {admin_key: ${X}}", "column 20: a value with ${NAME} stands in quotes there"),
        (
            "model_list: [{model_name: a, litellm_params: {model: openai/x, weight: -1}}]",
            "litellm_params.weight: expected a number, 0 or more, got -1",
        ),
        (
            "model_list: [{model_name: a, litellm_params: {model: openai/x, weight: .inf}}]",
            "litellm_params.weight: expected a number, 0 or more, got inf",
        ),
        ("model_list: [{model_name: a, model: openai/x}]", "model: unknown key; known: dialects,"),
        ("budgets: [{name: a b, scope: day, limits: {usd: 1}}]", "or `-`, got 'a b'"),
        ("steering: on", "steering: expected a mapping, got the value True"),
        ("server:\n  port: 80\n host: x", "line 3, column 2: indented otherwise than the lines"),
        ("reader: {model: {{ MODEL }}}", "brace or a bracket stands in quotes"),
        ("server: {port: 80", "line 1, column 18: a bracket is not closed"),
        ("logging: {level: 'info}", "a quotation is not closed"),
        ("server: {trusted_hosts: [*.example.com]}", "begins with * stands in quotes"),
        ("reader: {model: @fast}", "a value that begins with this character stands in quotes"),
        ("server: {host: '0.0.0.0:80'}", "host: '0.0.0.0:80': leave out scheme, port and path"),
        ("server: {host: 'http://[::1]'}", "leave out scheme, port and path"),
        (
            "budgets: [{name: a, scope: key, per: monthly, limits: {usd: 1}}]",
            "per: expected day, week, month, or a time above 0 such as 6h, got 'monthly'",
        ),
    ],
)
def test_a_message_says_what_to_write(text: str, says: str) -> None:
    """Without words of Python's or of the reader of YAML, and without a far-fetched guess."""
    assert any(says in fault for fault in faults_of(text))


def test_a_folder_that_cannot_be_made_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where permissions allow it, as they do for root in /proc."""
    Path("config.yaml").write_text("storage: {path: /proc/none/gateway.db}")
    assert main(["check-config"]) == 2
    assert "storage.path: " in capsys.readouterr().out


def test_an_open_address_without_a_key_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the address was set, as in the image; not with a key."""
    monkeypatch.setenv("GATEWAY_SERVER__HOST", "0.0.0.0")  # noqa: S104 - only read
    for keys, warned in (("{}", True), ("{auth: {gateway_keys: {a: %s}}}" % ("k3y-" * 8), False)):
        Path("config.yaml").write_text(keys)
        assert main(["check-config"]) == 0
        assert ("is open to other machines" in capsys.readouterr().out) == warned


def test_a_warning_names_the_line_or_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its setting stands; of one that ends the start as a fault no warning says it again."""
    text = "auth:\n  admin_key: short\nserver:\n  host: 0.0.0.0\n"
    Path("config.yaml").write_text(text)
    assert main(["check-config"]) == 0
    told = capsys.readouterr().out
    assert "warning: config.yaml, line 2: auth.admin_key: 5 characters" in told
    assert "warning: config.yaml, line 4: server.host: 0.0.0.0 is open" in told
    monkeypatch.setenv("GATEWAY_SERVER__HOST", "::")
    assert main(["check-config"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"warning: server\.host: :: .* \(set by GATEWAY_SERVER__HOST\)", told)
    Path("config.yaml").write_text("control: {at_risk: route}")
    assert main(["check-config"]) == 2
    assert capsys.readouterr().out.count("control.at_risk") == 1


@pytest.mark.parametrize("period", ["week", "month"])
def test_a_period_may_be_any_of_the_calendar(period: str) -> None:
    """`period` is the older name of `per`."""
    Path("config.yaml").write_text(
        f"budgets: [{{name: a, scope: run, limits: {{usd: 5}}, period: {period}}}]"
    )
    [budget] = getattr(load_settings(env={}), "budgets")  # noqa: B009 - the key of a feature
    assert budget.window == period
