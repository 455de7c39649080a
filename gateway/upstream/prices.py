"""Abilities and prices of models, from the price list in LiteLLM's package, and the cost of a call.

The list is 3 MB of JSON; parsed it would take 25 MB. So the file is mapped and the places of the
entries are noted (0.6 MB, 8 ms); an entry is parsed at first use. LiteLLM is not imported."""

import functools
import importlib.util
import json
import math
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from pathlib import Path

from gateway.values import FieldDict, Fields, frozen
from gateway.wire.coerce import as_bool, as_list, as_mapping, as_number, as_text, first_mapping
from gateway.wire.usage import INPUT, OUTPUT

# US dollars per token by kind (see `tokens_of`); the list may have no rate for some kinds.
Rates = Mapping[str, float]
_CHARGED_AS: Mapping[str, str] = {
    "cache_read": "input",
    "cache_write": "input",
    "cache_write_1h": "cache_write",
    "audio_input": "input",
    "reasoning": "output",
    "audio_output": "output",
}
"""The kind whose rate counts for tokens of a kind that has none."""
_PROMPT = ("input", "audio_input", "cache_read", "cache_write", "cache_write_1h")


def charge(tokens: Mapping[str, int], rates: Rates) -> float | None:
    """US dollars for `tokens`; None without rates for input and output."""
    if "input" not in rates or "output" not in rates:
        return None

    def rate(kind: str) -> float:
        return rates[kind] if kind in rates else rate(_CHARGED_AS[kind])

    return sum(count * rate(kind) for kind, count in tokens.items())


def tokens_of(usage: Fields) -> dict[str, int]:
    """The tokens of a `usage` object by the rate they are charged at, each once. OpenAI's
    forms include cached tokens in the prompt, Anthropic's counts them separately. Counts that are
    not positive numbers are read as 0; never raises."""
    anthropic = "prompt_tokens" not in usage and "cache_read_input_tokens" in usage
    prompt = _count(usage, *INPUT)
    completion = _count(usage, *OUTPUT)
    input_details = first_mapping(usage, "prompt_tokens_details", "input_tokens_details")
    output_details = first_mapping(usage, "completion_tokens_details", "output_tokens_details")
    read = _count(usage, "cache_read_input_tokens") or _count(input_details, "cached_tokens")
    written = _count(usage, "cache_creation_input_tokens") or _count(
        input_details, "cache_creation_tokens", "cache_write_tokens"
    )
    by_lifetime = first_mapping(input_details, "cache_creation_token_details") or first_mapping(
        usage, "cache_creation"
    )
    written_1h = min(written, _count(by_lifetime, "ephemeral_1h_input_tokens"))
    audio_input = _count(input_details, "audio_tokens")
    audio_output = _count(output_details, "audio_tokens")
    reasoning = min(completion, _count(output_details, "reasoning_tokens"))
    charged_apart = audio_input if anthropic else audio_input + read + written
    return {
        "input": max(0, prompt - charged_apart),
        "output": max(0, completion - reasoning - audio_output),
        "cache_read": read,
        "cache_write": written - written_1h,
        "cache_write_1h": written_1h,
        "audio_input": audio_input,
        "reasoning": reasoning,
        "audio_output": audio_output,
    }


def _count(holder: Fields, *names: str) -> int:
    """The first positive count among `names`; 0 when there is none."""
    values = (as_number(holder.get(name), 0.0) for name in names)
    return next((int(value) for value in values if 0 < value < math.inf), 0)


BYTES_PER_TOKEN = 4  # the usual rule of thumb for English text and code

# Tokens that an image costs, roughly. Source: Anthropic's documentation, "Vision".
ATTACHED_TOKENS = 1600
# An attached file, as chat and Responses write it in URLs, and Messages and audio parts by itself.
_ENCODED = re.compile(rb';base64,[A-Za-z0-9+/=\\]+|"data"\s*:\s*"[A-Za-z0-9+/\\]{100,}={0,2}"')


def body_tokens(raw: bytes) -> int:
    """About how many input tokens a request body has; attached files count as images."""
    text, attached = _ENCODED.subn(b"", raw)
    return len(text) // BYTES_PER_TOKEN + attached * ATTACHED_TOKENS


def estimated_usage(raw: bytes, completion: Fields) -> FieldDict | None:
    """A `usage` object for a request body and its answer; None for an answer without a message."""
    choices = [as_mapping(choice) for choice in as_list(completion.get("choices"))]
    messages = [as_mapping(choice["message"]) for choice in choices if choice.get("message")]
    if not messages:
        return None
    written = sum(len(text.encode("utf-8", "replace")) for m in messages for text in _texts(m))
    output = -(-written // BYTES_PER_TOKEN)
    tokens = body_tokens(raw)
    return {"prompt_tokens": tokens, "completion_tokens": output, "total_tokens": tokens + output}


def _texts(message: Fields) -> Iterator[str]:
    """The texts of a reply, its calls included."""
    for key in ("content", "reasoning_content", "reasoning", "refusal"):
        yield as_text(message.get(key), "")
    for part in as_list(message.get("content")):
        yield as_text(as_mapping(part).get("text"), "")
    called = [as_mapping(call).get("function") for call in as_list(message.get("tool_calls"))]
    for function in [*called, message.get("function_call")]:
        for key in ("name", "arguments"):
            yield as_text(as_mapping(function).get(key), "")


WITHOUT_LITELLM = "LiteLLM is not installed: `pip install .` in a clone of the gateway adds it"
LIST_NAME = "model_prices_and_context_window_backup.json"

_ABOVE = re.compile(r"_above_(\d+)k_tokens$")
_DATE = re.compile(r"[-@](20\d{6}|20\d\d-\d\d-\d\d|latest|default|\d{3})$")
_WORD = re.compile(r"[a-z]{2,}|o(?=\d)")
# Fields of a `usage` object that name a class of service: the tier, Anthropic's fast mode, and the
# place where Anthropic computes.
_SERVICE = ("service_tier", "speed", "inference_geo")
_RELATIVES = 9  # nearest names among which one has a price
_OBJECT = re.compile(rb'"\s*:\s*\{')
_NAME_BYTES = 256
_ENTRY_BYTES = 1 << 14  # ten times the longest entry
_MOST_KEPT = 1024

# A deployment's provider -> the names under which the list files its models.
_FILED_UNDER = {
    "azure": ("azure", "azure_ai", "openai"),
    "bedrock": ("bedrock", "bedrock_converse"),
    "bedrock_converse": ("bedrock", "bedrock_converse"),
    "cohere": ("cohere", "cohere_chat"),
    "cohere_chat": ("cohere", "cohere_chat"),
    "ollama_chat": ("ollama",),
}


@frozen
class Listed:
    """Properties of a model that only the list states: the config cannot change them."""

    max_output_tokens: int | None = None  # None when the list does not say
    lacks: frozenset[str] = frozenset()  # the list's flags (`supports_...`) that are false
    adaptive_thinking: bool | None = None  # Anthropic: the model decides how much it thinks
    # whether reasoning can be switched off, and may be off where a request does not say
    may_not_reason: bool = False
    # openAI: a reasoning family's model for conversations (`gpt-5-chat`)
    is_chat_tuned: bool = False
    only_responses: bool = False  # OpenAI: not offered in chat completions


@frozen
class ModelInfo:
    """One model. A capability is None when neither the list nor the config states it."""

    provider: str | None = None  # as in LiteLLM's list; None for a model that only the config knows
    max_input_tokens: int | None = None  # length of the context; None when nobody says
    tools: bool | None = None  # takes definitions of tools
    vision: bool | None = None  # takes images
    response_schema: bool | None = None  # takes a JSON schema for its answer
    reasoning: bool | None = None  # takes parameters for reasoning
    listed: Listed | None = None  # None for a model that only the config knows
    # (prompt tokens above which they apply, rates), the highest first; all have the last
    tiers: tuple[tuple[int, Rates], ...] = ((-1, {}),)
    # by the name of a class of service, factors of the usual rates, by kind
    services: Mapping[str, Rates] = field(default_factory=dict)

    @property
    def rates(self) -> Rates:
        """The rates of a short prompt."""
        return self.tiers[-1][1]

    def cost(self, usage: Fields) -> float | None:
        """Cost of a call in US dollars; None when the model has no prices per token. `usage` may
        have the form of OpenAI's chat completions or Responses, or Anthropic's. Tokens read from
        and written to the provider's cache are charged as such, where the list has the rates; the
        rates of long prompts, and of a class of service, apply to the whole call."""
        return self.cost_of_tokens(tokens_of(usage), [str(usage.get(name)) for name in _SERVICE])

    def cost_of_tokens(
        self, tokens: Mapping[str, int], services: Sequence[str] = ()
    ) -> float | None:
        """The same for tokens as `tokens_of` gives them, and names of classes of service."""
        prompt = sum(tokens[kind] for kind in _PROMPT)
        rates = next(rates for above, rates in self.tiers if prompt > above)
        for name in services:
            factors = self.services.get(name, {})
            rates = {kind: rate * factors.get(kind, 1.0) for kind, rate in rates.items()}
        return charge(tokens, rates)


class PriceList:
    """Looks models up in a list file; safe to share between threads."""

    def __init__(self, path: Path) -> None:
        """Map `path`. Raises: OSError when it cannot be read."""
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._places = _places(self._map)
        self.capabilities = functools.lru_cache(_MOST_KEPT)(self._search)
        """The entry of a model (`provider/name` or a bare name); None for one the list lacks."""
        self.relative = functools.lru_cache(_MOST_KEPT)(self._nearest)
        """(name, entry) of the relative with a price whose name is most like that of a model which
        the list lacks, and has its first word; None without one."""

    def _search(self, model: str) -> ModelInfo | None:
        for name, owners in _spellings(model):
            entry = self._entry(name)
            if entry is None:
                continue
            owner = str(entry.get("litellm_provider"))  # Vertex adds the maker of the model
            if owners is None or any(f"{owner}-".startswith(f"{known}-") for known in owners):
                return _info(entry, name)
        return None

    def _nearest(self, model: str) -> tuple[str, ModelInfo] | None:
        own = model[-_NAME_BYTES:].rpartition("/")[2]
        word = _WORD.match(own)
        names = {n.rpartition("/")[2]: n for n in reversed(self._places)} if word else {}
        alike = {short: n for short, n in names.items() if word and short.startswith(word[0])}
        for short in get_close_matches(own, alike, _RELATIVES):
            name = (
                short if short in self._places else alike[short]
            )  # another seller's may be dearer
            info = self.capabilities(name)
            if info is not None and info.rates.get("input"):
                return name, info
        return None

    def _entry(self, name: str) -> Fields | None:
        place = self._places.get(name)
        if place is None or name == "sample_spec":
            return None
        text = self._map[place : place + _ENTRY_BYTES].decode("utf-8", "replace")
        try:
            entry, _ = json.JSONDecoder().raw_decode(text)
        except ValueError:
            return None
        # An object inside an entry has a name too, and neither of these.
        return entry if "litellm_provider" in entry or "mode" in entry else None


def _places(text: mmap.mmap) -> dict[str, int]:
    """Name of every object in the list -> where it begins; the first of a name counts. Looks for
    what follows a name, which is ten times faster than looking for names."""
    places: dict[str, int] = {}
    for found in _OBJECT.finditer(text):
        end = found.start()
        start = text.rfind(b'"', max(0, end - _NAME_BYTES), end) + 1
        places.setdefault(text[start:end].decode("utf-8", "replace"), found.end() - 1)
    return places


@functools.cache
def litellm_folders() -> list[Path]:
    """The folders of LiteLLM's package, which is not imported; empty when it is not installed."""
    spec = importlib.util.find_spec("litellm")
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


@functools.cache
def default_list() -> PriceList | None:
    """The list in the installed LiteLLM; None when it is not installed."""
    paths = (folder / LIST_NAME for folder in litellm_folders())
    return next((PriceList(path) for path in paths if path.is_file()), None)


def capabilities(model: str) -> ModelInfo | None:
    """The entry of `model` in the installed list; None when it is unknown."""
    prices = default_list()
    return None if prices is None else prices.capabilities(model)


def _spellings(model: str) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Names to look for, and the owners an entry under that name must have (None: any). Without its
    provider a name is another model's unless the list files it under that provider: a price of
    OpenAI's says nothing about a server of one's own with the same model name."""
    if model.startswith("arn:"):  # of a profile that AWS defines; one's own has a random name
        yield model.rpartition("/")[2], _FILED_UNDER["bedrock"]
        return
    model = re.sub(r"^([a-z_]+):(?=[^/]+$)", r"\1/", model)
    provider, slash, name = model.partition("/")
    owners = _FILED_UNDER.get(provider, (provider,)) if slash else None
    yield model, None
    if slash:
        yield name, owners
    if _DATE.search(model):
        yield _DATE.sub("", model), None
        if slash:
            yield _DATE.sub("", name), owners


def _info(entry: Fields, name: str) -> ModelInfo:
    thresholds = {int(found[1]) * 1000 for key in entry if (found := _ABOVE.search(key))}
    base = _rates(entry, "", {})
    if entry.get("mode") == "image_generation":  # tokens of pictures cost more than others
        base = {**base, **{k: entry[name] for k, name in _IMAGE_RATES.items() if name in entry}}
    tiers = [(at, _rates(entry, f"_above_{at // 1000}k_tokens", base)) for at in thresholds]
    served = entry.get("supported_endpoints")
    if isinstance(served, list):
        only_responses = "/v1/responses" in served and "/v1/chat/completions" not in served
    else:
        only_responses = entry.get("mode") == "responses"
    return ModelInfo(
        provider=as_text(entry.get("litellm_provider"), None),
        max_input_tokens=_tokens_or_none(entry, "max_input_tokens", "max_tokens"),
        tools=as_bool(entry.get("supports_function_calling"), None),
        vision=_vision(entry),
        response_schema=as_bool(entry.get("supports_response_schema"), None),
        reasoning=as_bool(entry.get("supports_reasoning"), None),
        listed=Listed(
            max_output_tokens=_tokens_or_none(entry, "max_output_tokens"),
            lacks=frozenset(k for k, v in entry.items() if v is False and k[:9] == "supports_"),
            adaptive_thinking=as_bool(entry.get("supports_adaptive_thinking"), None),
            may_not_reason=entry.get("supports_none_reasoning_effort") is True,
            is_chat_tuned="-chat" in name,
            only_responses=only_responses,
        ),
        tiers=(*sorted(tiers, key=lambda tier: -tier[0]), (-1, base)),
        services=_services(entry, base),
    )


def _services(entry: Fields, base: Rates) -> Mapping[str, Rates]:
    """The rates of classes of service, each divided by that of `base`."""
    stated = as_mapping(entry.get("provider_specific_entry"))
    found = {
        name: dict.fromkeys(RATE_KEYS, as_number(stated.get(name), 1.0)) for name in ("fast", "us")
    }
    for name in ("priority", "flex", "ultrafast"):
        own = _rates(entry, f"_{name}", base)
        found[name] = {kind: rate / (base[kind] or 1.0) for kind, rate in own.items()}
    return found


def _vision(entry: Fields) -> bool | None:
    """Whether a model reads images; a chat model whose entry says nothing does not: of 1,578 such
    models of LiteLLM 1.106 one in six may. An image sent to a model that cannot read it is lost or
    refused, one kept from a model that could is answered by the model the client asked for."""
    stated = as_bool(entry.get("supports_vision", entry.get("supports_image_input")), None)
    if stated is not None:
        return stated
    inputs = entry.get("supported_modalities")
    if isinstance(inputs, list):
        return "image" in inputs
    return False if entry.get("mode") in ("chat", "responses") else None


RATE_KEYS: Mapping[str, str] = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cache_read": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "cache_write_1h": "cache_creation_input_token_cost_above_1hr",
    "audio_input": "input_cost_per_audio_token",
    "reasoning": "output_cost_per_reasoning_token",
    "audio_output": "output_cost_per_audio_token",
}


_IMAGE_RATES = {"input": "input_cost_per_image_token", "output": "output_cost_per_image_token"}


def _rates(entry: Fields, suffix: str, base: Rates) -> Rates:
    """The rates under keys that end in `suffix`; a missing one is that of `base`."""
    found = {kind: as_number(entry.get(key + suffix), None) for kind, key in RATE_KEYS.items()}
    return {**base, **{kind: rate for kind, rate in found.items() if rate is not None}}


def _tokens_or_none(entry: Fields, *names: str) -> int | None:
    values = (as_number(entry.get(name), None) for name in names)
    return next((int(value) for value in values if value is not None), None)
