"""The providers of `providers.toml`, and the provider that a model string names."""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.data_files import read_toml
from gateway.errors import UnknownProvider
from gateway.upstream.litellm_package import WITHOUT_LITELLM, can_translate, litellm_folders
from gateway.upstream.model_costs import capabilities
from gateway.values import Fields, Texts
from gateway.wire.coerce import as_mapping

_ENUMERATION = re.compile(r"^class LlmProviders\b.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


@cache
def litellm_names() -> frozenset[str]:
    """Every prefix that LiteLLM reads as a provider; empty when LiteLLM is not installed."""
    names = set()
    for folder in litellm_folders():
        with suppress(OSError):
            found = _ENUMERATION.search((folder / "types" / "utils.py").read_text(encoding="utf-8"))
            members = ast.walk(ast.parse(found[0] if found else ""))
            names |= {ast.literal_eval(m.value) for m in members if isinstance(m, ast.Assign)}
        with suppress(OSError):
            table = (folder / "llms" / "openai_like" / "providers.json").read_bytes()
            names |= as_mapping(json.loads(table)).keys()
    return frozenset(name for name in names if isinstance(name, str))


ANTHROPIC_API_BASE = "https://api.anthropic.com"
GEMINI_API_BASE = "https://generativelanguage.googleapis.com"
# `providers.toml`; its comments say what each part is.
TABLE: Fields = read_toml(__package__, "providers.toml")

KEY_VARIABLES: Mapping[str, Sequence[str]] = TABLE["key_variables"]
BASELESS, TRANSLATED_PROVIDERS = (frozenset(TABLE[name]) for name in ("baseless", "translated"))


class Provider(NamedTuple):
    """An OpenAI-compatible API."""

    key_variables: Sequence[str]  # environment variables that may hold its key, tried in this order
    api_base: str | None = None  # None: the deployment has to name it
    # the dialects of OpenAI's API that it is documented to speak; empty: nobody says
    dialects: Sequence[str] = ()


OPENAI_COMPATIBLE = {name: Provider(**row) for name, row in TABLE["openai_compatible"].items()}


def documented_dialects(host: str, provider: str = "") -> frozenset[str]:
    """The dialects of OpenAI's API that are documented for the provider at a host, or for servers
    of a kind that the operator runs; empty: it has to be tried."""
    for name, row in OPENAI_COMPATIBLE.items():
        own = urlsplit(row.api_base or "").hostname
        if host == own or (own is None and name == provider):
            return frozenset(row.dialects)
    return frozenset()


# Prefixes of bare model names that are not OpenAI's, as LiteLLM reads them, too.
_BARE_PREFIXES = (("claude", "anthropic"), ("gemini", "gemini"))

_TABLED = (*OPENAI_COMPATIBLE, *TRANSLATED_PROVIDERS)

# Names in LiteLLM's list that are not those of a provider.
_FILED_AS = {"bedrock_converse": "bedrock"}
_NEARLY = 0.88  # similarity of a typo: `llama3` and `ollama` have .83, `opnai` and `openai` .91


def is_tabled(provider: str) -> bool:
    """Whether a provider is in one of the two tables here."""
    return provider in OPENAI_COMPATIBLE or provider in TRANSLATED_PROVIDERS


def is_known(provider: str) -> bool:
    """Whether a provider is in the tables here, or LiteLLM knows it."""
    return is_tabled(provider) or provider in litellm_names()


def split_model(model: str, known: Callable[[str], bool] = is_known) -> tuple[str | None, str]:
    """`provider/name` or `provider:name` -> (known provider, name); (None, model) for any other."""
    for separator in ("/", ":"):
        provider, found, name = model.partition(separator)
        if found and name and known(provider):
            return provider, name
    return None, model


def provider_of(params: Fields) -> tuple[str, str]:
    """(provider, model name at the provider) of a deployment's `litellm_params`.

    The provider decides which host gets the deployment's key. `custom_llm_provider` names it, else
    the prefix of the model does; with an `api_base` only the prefixes of the tables here are read
    as such (`meta-llama/Llama-3` is that server's own name), without one also those of LiteLLM. A
    name without a slash is OpenAI's, unless it begins like one of Anthropic's or Google's, or
    LiteLLM's list files it under another provider (`ft:gpt-4.1:acme` and `llama3:8b` have no
    prefix). Raises: UnknownProvider: no `api_base`, and nobody knows the prefix or
    `custom_llm_provider`, or the name begins or ends with a separator."""
    model = str(params["model"])
    explicit = params.get("custom_llm_provider")
    has_base = bool(params.get("api_base") or params.get("base_url"))
    provider, name = split_model(model, is_tabled if has_base else is_known)
    if explicit:
        if not has_base and not is_known(str(explicit)):
            raise unknown_provider(str(explicit), model)
        return str(explicit), name if provider == explicit else model
    if provider:
        return provider, name
    for prefix, owner in _BARE_PREFIXES:
        if model.startswith(prefix):
            return owner, model
    if has_base:
        return "openai", model
    stray, colon, _ = model.partition(":")
    misspelt = colon and get_close_matches(stray.lower(), _TABLED, n=1, cutoff=_NEARLY)
    if unknown := unknown_prefix(model) or (stray if misspelt else None):
        raise unknown_provider(unknown, model)
    if model.startswith(("/", ":")):  # `${PROVIDER}/name` with an empty variable
        raise UnknownProvider(f"{model!r} names a model and no provider")
    if model.endswith("/"):
        raise UnknownProvider(f"{model!r} names a provider and no model")
    # The provider under which LiteLLM's list files a name without a prefix (`jamba-1.5`): LiteLLM
    # reads it so, too.
    info = capabilities(model)
    filed = ""
    if info is not None:
        filed = (info.provider or "").partition("-")[0]
    filed = _FILED_AS.get(filed, filed)
    listed = is_known(filed) and not _is("openai", filed) and filed != "text"
    return filed if listed else "openai", model


def keys_of_others(provider: str, params: Fields, env: Texts) -> frozenset[str]:
    """Keys in `env` that are no key of `provider`, by the variables of the tables here. LiteLLM
    sends `OPENAI_API_KEY` to OpenAI-like providers for which it finds no key of their own. What
    `params` name themselves is the operator's choice and is not among them."""
    variables = {
        name: owner for owner, known in OPENAI_COMPATIBLE.items() for name in known.key_variables
    }
    variables |= {name: owner for owner, names in KEY_VARIABLES.items() for name in names}
    others = {env[v] for v, owner in variables.items() if env.get(v) and not _is(provider, owner)}
    own = [env.get(f"{provider.upper()}_API_KEY"), *params.values()]
    return frozenset(others.difference(value for value in own if isinstance(value, str)))


def _is(provider: str, owner: str) -> bool:
    """Whether both are one company's (`text-completion-openai` and `anthropic_text`)."""
    if owner == "gemini" and provider.startswith("vertex_ai"):
        return True
    return provider in (owner, f"text-completion-{owner}", f"{owner}_text")


def unknown_prefix(model: str) -> str | None:
    """The part of a name before its slash, if that is no known provider; None for any other name.
    The star of a pattern such as `*/chat` stands for any provider."""
    prefix, slash, _ = model.partition("/")
    named = slash and "*" not in prefix and not prefix.startswith("arn:")
    if named and not is_known(prefix):
        return prefix
    return None


def unknown_provider(prefix: str, model: str) -> UnknownProvider:
    """The error for a prefix that nobody knows; it names the nearest known one."""
    near = get_close_matches(prefix.lower(), sorted({*_TABLED, *litellm_names()}), n=1)
    hint = "no known name is close to it"
    if near:
        hint = f"did you mean {near[0]!r}?"
    hint += "" if can_translate() else f" ({WITHOUT_LITELLM} brings others)"
    return UnknownProvider(f"{prefix!r} in {model!r} is not a known provider; {hint}")
