"""A newer list of prices: checked, shown, kept, used by a gateway, and in a backup."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from gateway.app import build_app
from gateway.cli import main
from gateway.config import settings_from_dict
from gateway.config.storage import StorageSettings
from gateway.features.prices import price_list
from gateway.runtime import Runtime
from gateway.upstream import model_costs
from steering_gateway_testing import AppServer

NAME = "model_prices_and_context_window.json"
DAY_S = 86_400


@pytest.fixture(autouse=True)
def _database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty one in this folder; what the process uses is afterwards as before."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert main(["keys", "create", "acme"]) == 0
    yield
    model_costs.use_list()


def model(usd: Any, **more: Any) -> dict[str, Any]:
    """An entry with the same price for input and output."""
    prices = {"input_cost_per_token": usd, "output_cost_per_token": usd}
    return {"litellm_provider": "openai", "mode": "chat", **prices, **more}


def put(models: Any, age_days: float = 0) -> None:
    """Write the file that is given to the command, changed some days before 2026-06-11."""
    Path(NAME).write_text(json.dumps(models))
    at = 1_781_136_000 - age_days * DAY_S
    os.utime(NAME, (at, at))


def rate(name: str) -> float | None:
    """US dollars for a token of input, in a process whose gateway has this folder's database."""
    model_costs.use_list(StorageSettings().prices_file)
    info = model_costs.capabilities(name)
    return None if info is None else info.rates["input"]


def test_a_newer_list_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    """With its date and source, readable by its owner only, and said by three commands. A model
    that it lacks has LiteLLM's price."""
    before = rate("gpt-4o-mini")
    assert before
    put({"sample_spec": {"mode": "one of"}, "gpt-4o": model(5e-6), "new-1": model(1e-6)})
    assert main(["prices", "update", NAME, "--yes"]) == 0
    assert (rate("gpt-4o"), rate("new-1"), rate("gpt-4o-mini")) == (5e-6, 1e-6, before)
    kept = Path("gateway.db-prices.json")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    capsys.readouterr()
    about = {"date": "2026-06-11", "source": os.path.abspath(NAME)}
    assert main(["prices", "--json"]) == 0
    shown = {"models": 2, "file": str(kept.absolute()), **about}
    assert json.loads(capsys.readouterr().out) == shown
    assert main(["prices"]) == 0
    line = f"prices of 2026-06-11, from {os.path.abspath(NAME)}\n"
    assert capsys.readouterr().out == f"2 models, {line}"
    assert main(["check-config"]) == 0
    assert line in capsys.readouterr().out
    assert main(["audit"]) == 0
    assert "prices update" in capsys.readouterr().out


def test_an_alias_has_the_price_of_its_model() -> None:
    """Of the newest list that has the model, and one step: aliases of each other have none."""
    before = rate("gpt-4o-mini")
    aliases = {"mine": "gpt-4o", "theirs": "gpt-4o-mini", "one": "two", "two": "one", "own": "own"}
    named = {name: {"alias_of": of} for name, of in aliases.items()}
    put({"gpt-4o": model(5e-6), **named})
    assert main(["prices", "update", NAME, "--yes"]) == 0
    assert (rate("mine"), rate("theirs")) == (5e-6, before)
    assert [rate(name) for name in ("one", "two", "own")] == [None, None, None]


@pytest.mark.parametrize("kept", ["{", "", "[1]", None], ids=["cut", "empty", "list", "folder"])
def test_a_kept_list_that_cannot_be_read_is_named(
    kept: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line with the reason; LiteLLM's list is used. A list that nobody gave is no fault."""
    log = Mock()
    monkeypatch.setattr(price_list, "_log", log)
    file = Path("gateway.db-prices.json")
    assert main(["prices"]) == 0
    assert log.warning.call_count == 0
    if kept is None:
        file.mkdir()
    else:
        file.write_text(kept)
    assert main(["prices"]) == 0
    assert "from the installed LiteLLM" in capsys.readouterr().out
    (said,) = log.warning.call_args_list
    assert said.kwargs["file"] == os.path.abspath(file)
    assert said.kwargs["why"]


@pytest.mark.parametrize(("days", "is_said"), [(59, False), (61, True)])
def test_dollars_say_that_their_prices_are_old(
    days: int, is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """From 60 days on, with the date, under the sums of commands and on every page."""
    put({"gpt-4o": model(5e-6)})
    at = time.time() - days * DAY_S
    os.utime(NAME, (at, at))
    assert main(["prices", "update", NAME, "--yes"]) == 0
    capsys.readouterr()
    said = f"Dollars at prices of {time.strftime('%Y-%m-%d', time.gmtime(at))}, over 60 days old"
    assert main(["runs", "usage"]) == 0
    assert (said in capsys.readouterr().out) is is_said
    app = build_app(settings_from_dict({"storage": {"path": "gateway.db"}}))
    with AppServer(app) as server:
        page = httpx.get(f"{server.url}/dashboard").text
    assert (said in page) is is_said


async def test_a_gateway_reads_it_at_its_start_and_on_reload() -> None:
    """The calls after that are counted by it."""
    settings = settings_from_dict(
        {"storage": {"path": "gateway.db"}, "etraces": {"enabled": False}}
    )
    used = {"prompt_tokens": 1, "completion_tokens": 0}
    runtime = Runtime(settings)
    await runtime.start()
    assert runtime.services.catalogue.cost("new-1", used) is None
    put({"new-1": model(1e-6)})
    assert await asyncio.to_thread(main, ["prices", "update", NAME, "--yes"]) == 0
    assert runtime.replace(lambda: settings)
    assert runtime.services.catalogue.cost("new-1", used) == 1e-6
    await runtime.aclose()
    model_costs.use_list()
    again = Runtime(settings)
    await again.start()
    assert again.services.catalogue.cost("new-1", used) == 1e-6
    await again.aclose()


def test_it_says_what_changes(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of ten models of each kind, and every price that is ten times what it was, or a
    tenth."""
    old = {f"up-{n}": model(1e-6) for n in range(12)} | {"down": model(4e-6), "same": model(1e-6)}
    put(old | {"leap": model(1e-6), "fall": model(1e-6), "free": model(0.0)})
    assert main(["prices", "update", NAME, "--yes"]) == 0
    new = {f"up-{n}": model(2e-6) for n in range(12)} | {"down": model(3e-6), "same": model(1e-6)}
    jumps = {"leap": model(1e-5), "fall": model(1e-7), "free": model(1e-6)}
    put(new | jumps | {f"new-{n}": model(1e-6) for n in range(3)} | {"other": {"alias_of": "up-1"}})
    capsys.readouterr()
    assert main(["prices", "update", NAME, "--yes"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("20 models, prices of 2026-06-11, ")
    assert "\n3 added: new-0, new-1, new-2\n" in said
    assert "\n14 dearer: up-0, up-1, " in said
    assert "up-9, and 4 more\n" in said
    assert "\n2 cheaper: down, fall\n" in said
    assert "same" not in said
    leaps = re.findall(r"(?m)^ten times (\w+), or more: (\S+): (\S+) was (\S+), is (\S+)$", said)
    kinds = ("input_cost_per_token", "output_cost_per_token")
    assert leaps == [
        row
        for word, name, was, now in (
            ("dearer", "leap", "$0.000001", "$0.00001"),
            ("cheaper", "fall", "$0.000001", "$0.0000001"),
            ("dearer", "free", "$0", "$0.000001"),
        )
        for row in ((word, name, kind, was, now) for kind in kinds)
    ]


def test_a_price_of_a_class_of_service_alone_is_no_error() -> None:
    """The model is known, without a price for other calls; LiteLLM's list has such models."""
    put({"m-1": {"litellm_provider": "openai", "input_cost_per_token_priority": 1e-6}})
    assert main(["prices", "update", NAME, "--yes"]) == 0
    model_costs.use_list(StorageSettings().prices_file)
    info = model_costs.capabilities("m-1")
    assert info is not None
    assert info.cost({"prompt_tokens": 1, "service_tier": "priority"}) is None


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"m-1": model("0.1")}, "m-1: input_cost_per_token: '0.1' is no number of 0 or more"),
        ({"m-1": model(-1)}, "m-1: input_cost_per_token: -1 is no number"),
        ({"m-1": model(True)}, "m-1: input_cost_per_token: True is no number"),
        ({"m-1": model(1e-6, output_cost_per_image=None)}, "output_cost_per_image: None is no"),
        ({"m-1": 1e-6}, "Expected `object`, got `float`"),
        ([model(1e-6)], "Expected `object`, got `array`"),
        ("text", f"{NAME}: no list of models in LiteLLM's form: Expected `object`, got `str`"),
        ({}, f"{NAME}: no model is in it"),
        ({"data": {"gpt-4o": model(1e-6)}}, f"{NAME}: no model is in it"),
        ({"sample": {"input_cost_per_token": 0}}, f"{NAME}: no model is in it"),
    ],
)
def test_a_wrong_file_changes_nothing(
    models: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model and the key are named; no list is kept."""
    put(models)
    assert main(["prices", "update", NAME, "--yes"]) == 2
    assert said in capsys.readouterr().err
    assert not list(Path().glob("gateway.db-prices*"))


@pytest.mark.parametrize("text", ["", '{"gpt-4o": {', '{"a":' * 5000, "<!DOCTYPE html>", "\udce9"])
def test_a_file_that_is_no_list_is_named(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty, cut, nested, a page of an error or in another encoding: one line, no list is kept."""
    Path(NAME).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["prices", "update", NAME, "--yes"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gateway: {NAME}: no list of models in LiteLLM's form: ")
    assert not list(Path().glob("gateway.db-prices*"))


@pytest.mark.parametrize("form", ["indented", "a line", "empty", "cut", "a folder"])
def test_a_kept_file_that_cannot_be_read_stops_nothing(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """LiteLLM's list is used, and the commands say so. Whoever copies a file there by hand may have
    either form of LiteLLM's."""
    file = Path("gateway.db-prices.json")
    models = {"gpt-4o": model(5.0)}
    texts = {"indented": json.dumps(models, indent=4), "a line": json.dumps(models), "empty": ""}
    if form == "a folder":
        file.mkdir()
    else:
        file.write_text(texts.get(form, '{"date": "2026-0'))
    found = rate("gpt-4o")
    assert found
    assert found < 1.0
    for words in (["prices"], ["check-config"]):
        capsys.readouterr()
        assert main(words) == 0
        assert ", from the installed LiteLLM" in capsys.readouterr().out


def test_without_a_yes_nothing_changes(capsys: pytest.CaptureFixture[str]) -> None:
    """What would change is said; so is the place of the list."""
    put({"m-1": model(1e-6)})
    assert main(["prices", "update", NAME]) == 2
    shown = capsys.readouterr()
    assert "1 added: m-1" in shown.out
    assert f"kept in {os.path.abspath('gateway.db-prices.json')}" in shown.err
    assert not list(Path().glob("gateway.db-prices*"))


def test_a_list_needs_a_place() -> None:
    """Of a server it is the folder of the spool; in memory there is none."""
    server = StorageSettings(url="postgresql://u@h/d")  # type: ignore[arg-type]
    assert server.prices_file == "gateway-spool/prices.json"
    assert replace(server, spool_path=None).prices_file == ""
    assert StorageSettings(path=":memory:").prices_file == ""


def test_a_backup_has_the_list() -> None:
    """It is put beside the new file, and what was there is kept."""
    put({"m-1": model(1e-6)})
    assert main(["prices", "update", NAME, "--yes"]) == 0
    assert main(["backup", "all.tar"]) == 0
    put({"m-1": model(2e-6)})
    assert main(["prices", "update", NAME, "--yes"]) == 0
    assert rate("m-1") == 2e-6
    assert main(["restore", "all.tar", "--replace"]) == 0
    assert rate("m-1") == 1e-6
    assert len(list(Path().glob("gateway.db-prices.json.replaced-*"))) == 1
    assert stat.S_IMODE(os.stat("gateway.db-prices.json").st_mode) == 0o600
