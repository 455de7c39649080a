"""`gateway check-config`: everything that is wrong with the settings, at once."""

import asyncio
import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gateway import config
from gateway.commands.declared import declare
from gateway.config.litellm import written_as
from gateway.config.load import ConfigFile, left_out, read_config_file
from gateway.config.own_address import is_loopback_name
from gateway.config.settings import named_models
from gateway.config.values import Faults, key_path
from gateway.data_files import read_text, read_toml
from gateway.dialects import CHAT, MESSAGES
from gateway.errors import ConfigError, Unauthorized, UnknownProvider
from gateway.hooks import given
from gateway.text.sanitize import visible
from gateway.upstream import credentials
from gateway.upstream.deployments import DeploymentTable, Target
from gateway.upstream.model_abilities import ModelCatalogue
from gateway.upstream.model_costs import capabilities, use_list
from gateway.upstream.providers import provider_of
from gateway.values import FieldDict, Fields, Texts

_CLOSE = "no key is named: set auth.gateway_keys, unless `gateway keys list` shows one"
_SHORTEST_KEY = 16  # characters; half as many as 128 random bits have in hexadecimal
_FEWEST_DISTINCT = 8  # characters; 16 random decimal digits have 8 or more in 9 of 10 cases
# Beginnings of the names of OpenAI's models, for those newer than the list; and a pattern.
_OWN_NAMES = re.compile(r"ft:|gpt-|chatgpt-|o\d|\*")


def config_warnings(settings: config.Settings, env: Texts) -> Iterator[str]:
    """One line for each doubtful setting, beginning with its path or variable. Shows no key."""
    for name, meant in config.misspelt_variables(env):
        yield f"{name}: sets nothing, because keys are joined by two underscores: {meant}"
    yield from config.unset_variables(settings)
    table = DeploymentTable(settings, env)
    upstream = settings.default_upstream
    key = "the client's own key"
    if upstream.api_key:
        key = "default_upstream.api_key"
    for path, model in dict.fromkeys(named_models(settings)):
        if table.resolve(model) == [table.default]:
            hint = "".join(
                f"; did you mean {name!r}?" for name in get_close_matches(model, table.names, n=1)
            )
            yield (
                f"{path}: no deployment of model_list serves {model!r}: it is asked of "
                f"{upstream.api_base} with {key}{hint}"
            )
    yield from _unknown_models(settings)
    infos = {each.model_name: each.model_info for each in settings.model_list}
    catalogue = ModelCatalogue(table, infos)
    for doubts in given("doubts"):
        yield from doubts(settings, catalogue)
    plain = {
        target.api_base.text: f"model_list[{target.key - 1}]" if target.key else "default_upstream"
        for api, target in _asked_by_clients(table)
        if api in target.client_apis and credentials.operator_key(target) is None
        if target.api_base.scheme == "http" and not is_loopback_name(target.api_base.host)
    }
    for url, path in plain.items():
        yield f"{path}: clients' own credentials go to {url} without TLS"
    host = settings.server.host
    if not (is_loopback_name(host) or settings.auth.names_keys):
        yield f"server.host: {host} is open to other machines, and {_CLOSE}"
    for name, secret in settings.auth.secrets().items():
        path = f"auth.{name}"
        if len(secret) < _SHORTEST_KEY:
            yield f"{path}: {len(secret)} characters can be guessed; use {_SHORTEST_KEY} or more"
        elif len(set(secret)) < _FEWEST_DISTINCT:
            yield f"{path}: few different characters can be guessed; use a random key"


def _unknown_models(settings: config.Settings) -> Iterator[str]:
    """Deployments whose key goes to OpenAI only because nothing says whose their model is."""
    for number, deployment in enumerate(settings.model_list):
        params = deployment.litellm_params
        model = str(params["model"])
        named = ("api_base", "base_url", "custom_llm_provider")
        if (
            any(map(params.get, named))
            or provider_of(params) != ("openai", model)
            or _OWN_NAMES.match(model)
        ):
            continue
        if capabilities(model) is None:
            yield (
                f"model_list[{number}].litellm_params.model: {model!r} names no provider, and no "
                f"list has it: it is asked of {config.OPENAI_API_BASE} with the deployment's key"
            )


_TRIED = read_toml(__package__, "check_config_tried.toml")


def _asked_by_clients(table: DeploymentTable) -> Iterator[tuple[str, Target]]:
    """(API, target) of each place where clients' own credentials may go."""
    default = table.default
    yield from (("openai", default), ("anthropic", default.for_client(None, "anthropic")))
    for seat in (table.seats.of(path, []) for path in _TRIED["paths"]):
        if seat is not None:
            yield seat.api, default.for_client(None, seat.api, seat)
    for target in (target for name in table.names for target in table.resolve(name)):
        yield from ((api, target) for api in sorted(target.client_apis))


def client_hosts(table: DeploymentTable) -> dict[str, list[str]]:
    """The hosts to which each form of a client's own credential goes with a config."""
    found: dict[str, dict[str, None]] = {form: {} for form in _TRIED["credentials"]}
    for api, target in _asked_by_clients(table):
        for form, header in _TRIED["credentials"].items():
            name, _, value = header.encode().partition(b": ")
            with suppress(Unauthorized):
                if credentials.allowed([(name, value)], b"", target, api=api):
                    found[form][target.api_base.netloc] = None
    return {form: list(hosts) for form, hosts in found.items()}


def name_hosts(table: DeploymentTable) -> dict[str, str]:
    """The place of each of ten usual names with a config, and its name there if not its own."""
    found = {}
    for asked in _TRIED["names"]:
        dialect = MESSAGES if asked.startswith("claude") else CHAT
        try:
            target = table.resolve(asked)[0].for_dialect(dialect)
        except UnknownProvider as exc:
            found[asked] = f"no host: {exc}"
            continue
        if target.lane == "native":
            place = target.api_base.netloc
        else:
            place = f"{target.provider}, through LiteLLM"
        found[asked] = place if target.model in (None, asked) else f"{place}, as {target.model}"
    return found


def add_parser(commands: Any) -> None:
    """Declare the command."""
    declare(commands, __name__, {"check-config": _check_config})


def _check_config(args: Namespace) -> int:
    if args.schema:
        sys.stdout.write(read_text(config.__name__, "config.schema.json").rstrip() + "\n")
        return 0
    path = config.config_file(args.config)
    report = _report(path, connects=args.connect)
    found = report["problems"]
    if args.json:
        about = {
            "config": path and str(path),
            "ok": not found,
            "problem": "; ".join(found) or None,
        }
        text = json.dumps(about | report)
    else:
        text = visible("\n".join(_lines(str(path or "defaults"), report)))
    sys.stdout.write(text + "\n")
    if found:
        return 2
    return 0


def _lines(name: str, report: Fields) -> Iterator[str]:
    """The report on the config `name` as text; a template would take a tenth of the time."""
    for form, places in report["client_credentials"].items():
        yield f"a client's {form} goes to: {', '.join(places) or 'no host'}"
    for asked, place in report["names"].items():
        yield f"the model {asked} goes to: {place}"
    if report["prices"]:
        yield "prices of {date}, from {source}".format_map(report["prices"])
    for key in report["ignored"]:
        yield f"note: {key} is a setting of the LiteLLM proxy and has no effect here"
    for warning in report["warnings"]:
        yield f"warning: {warning}"
    faults = report["problems"]
    yield from faults
    if not faults:
        yield f"{name}: ok"
    elif len(faults) > 1:
        yield f"{name}: {len(faults)} faults"


def _report(path: Path | None, *, connects: bool) -> FieldDict:
    """Faults, which make the config unusable; keys without effect; warnings; where clients'
    credentials and usual names of models go."""
    from gateway.process.start_checks import check, unwritable

    report: FieldDict = {
        "problems": [],
        "ignored": [],
        "warnings": [],
        "client_credentials": {},
        "names": {},
        "prices": None,
    }
    try:
        if path:
            file = read_config_file(path)
        else:
            file = ConfigFile()
    except ConfigError as exc:
        return {**report, "problems": list(exc.faults)}
    faults = Faults()
    settings, refused = _settings(file, faults)
    if settings is not None:
        with faults.collected():
            check(settings, refused)
    if settings is not None and not faults.found:
        report["prices"] = getattr(use_list(settings.storage.prices_file), "about", None)
        report["warnings"] = list(config_warnings(settings, os.environ))
        table = DeploymentTable(settings, os.environ)
        report["client_credentials"] = client_hosts(table)
        report["names"] = name_hosts(table)
        if connects:
            from gateway.commands.store import connect  # it imports all stores

            with faults.collected():
                asyncio.run(connect(settings))
    report["problems"] = [*file.repeated, *file.located(faults.found)]
    ignored = config.ignored_keys(file.values)
    unmet = [f"{path}: not honoured: {here}" for path, here in ignored.items() if here]
    if (
        settings
        and settings.storage.shared
        and (spool := settings.storage.spool_folder)
        and (problem := unwritable(Path(spool), is_file=False))
    ):
        unmet.append(f"storage.spool_path: {problem}: records wait in memory only")
    unmet += (
        f"{k}: {instead}" for k, instead in config.removed_keys(file.values, os.environ).items()
    )
    report["ignored"] = [key for key in ignored if not ignored[key]]
    report["warnings"] = file.located(
        config.naming_the_variable(each, os.environ)
        for each in (*unmet, *report["warnings"])
        if not faults.explain(each)
    )
    return report


def _settings(file: ConfigFile, faults: Faults) -> tuple[config.Settings | None, set[str]]:
    """The settings without the sections that have faults, and the names of those sections."""
    try:
        return config.settings_from_dict(file.values, os.environ), set()
    except ConfigError as exc:
        faults.found.extend(exc.faults)
    refused = {
        re.split(r"[.\[]", path)[0]
        for fault in faults.found
        for path in written_as(key_path(fault))
    }
    try:
        return config.settings_from_dict(*left_out(refused, file.values, os.environ)), refused
    except ConfigError:
        return None, refused
