"""The price lists: the one in LiteLLM's package, and one that was given (`gateway prices update`).

LiteLLM's is 3 MB of JSON; parsed it would take 25 MB. So the file is mapped and the places of the
entries are noted (0.6 MB, 8 ms); an entry is parsed at first use. LiteLLM is not imported."""

import json
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path

import msgspec

from gateway.data_files import read_toml
from gateway.errors import in_words
from gateway.observability.logging import get_logger
from gateway.text.formatting import iso
from gateway.upstream.litellm_package import litellm_folders
from gateway.upstream.model_costs import RATE_KEYS, Listed, ModelInfo, Rates
from gateway.values import Fields
from gateway.wire.coerce import as_bool, as_int, as_number, as_text, list_at, mapping_at

LIST_NAME = "model_prices_and_context_window_backup.json"

_ABOVE = re.compile(r"_above_(\d+)k_tokens$")
_DATE = re.compile(r"[-@](20\d{6}|20\d\d-\d\d-\d\d|latest|default|\d{3})$")
_WORD = re.compile(r"[a-z]{2,}|o(?=\d)")
_RELATIVES = 9  # nearest names among which one has a price
_OBJECT = re.compile(rb'"\s*:\s*\{')
_NAME_BYTES = 256
_ENTRY_BYTES = 1 << 14  # ten times the longest entry
_MOST_KEPT = 1024

_log = get_logger("gateway.prices")

_FILED_UNDER = read_toml(__package__, "filed_under.toml")


class PriceList:
    """Looks models up in a list file; safe to share between threads."""

    def __init__(self, path: Path):
        """Map `path`. Raises: OSError when it cannot be read."""
        with path.open("rb") as file:
            self.text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._places = _places(self.text)
        # LiteLLM does not date its list: it is at least as old as its file.
        self.about: Fields = {
            "date": iso(path.stat().st_mtime)[:10],
            "source": "the installed LiteLLM",
        }
        self.beneath: PriceList | None = None  # has the models that this one lacks
        # The entry of a model (`provider/name` or a bare name); None for one the list lacks.
        self.capabilities = lru_cache(_MOST_KEPT)(self._search)
        # (name, entry) of the relative with a price whose name is most like that of a model which
        # the list lacks, and has its first word; None without one.
        self.relative = lru_cache(_MOST_KEPT)(self._nearest)

    def _search(self, model: str) -> ModelInfo | None:
        for name, owners in _spellings(model):
            entry = self.entry(name)
            if entry is None:
                continue
            owner = str(entry.get("litellm_provider"))  # Vertex adds the maker of the model
            if owners is None or any(f"{owner}-".startswith(f"{known}-") for known in owners):
                return _info(entry, name)
        return None

    def _nearest(self, model: str) -> tuple[str, ModelInfo] | None:
        own = model[-_NAME_BYTES:].rpartition("/")[2]
        word = _WORD.match(own)
        if word is None:
            return None
        names = {n.rpartition("/")[2]: n for n in reversed(self._places)}
        names |= {n: n for n in names if n in self._places}  # another seller's may be dearer
        alike = [short for short in names if short.startswith(word[0])]
        for short in get_close_matches(own, alike, _RELATIVES):
            name = names[short]
            info = self.capabilities(name)
            if info is not None and info.rates.get("input"):
                return name, info
        return None

    def entry(self, name: str) -> Fields | None:
        """The properties listed under exactly this name, and below them those of the one model
        that `alias_of` names; None for one that is no model."""
        entry = self._written(name)
        if "alias_of" in entry:
            entry = {**self._written(str(entry["alias_of"])), **entry}
        # An object inside an entry has a name too, and neither of these.
        return entry if "litellm_provider" in entry or "mode" in entry else None

    def _written(self, name: str) -> Fields:
        place = self._places.get(name)
        if place is None and self.beneath:
            return self.beneath._written(name)
        if place is None or name == "sample_spec":
            return {}
        try:
            entry, _ = json.JSONDecoder().raw_decode(
                self.text[place : place + _ENTRY_BYTES].decode("utf-8", "replace")
            )
        except ValueError:
            return {}
        found: Fields = entry
        return found

    def count(self) -> int:
        """The number of its models."""
        return sum(self.entry(name) is not None for name in self._places)


def _places(text: mmap.mmap) -> dict[str, int]:
    """Name of every object in the list -> where it begins; the first of a name counts. Looks for
    what follows a name, which is ten times faster than looking for names."""
    places: dict[str, int] = {}
    for found in _OBJECT.finditer(text):
        end = found.start()
        start = text.rfind(b'"', max(0, end - _NAME_BYTES), end) + 1
        places.setdefault(text[start:end].decode("utf-8", "replace"), found.end() - 1)
    return places


def list_of(kept: str) -> PriceList | None:
    """The list in the file `kept` over LiteLLM's; LiteLLM's where there is no such file, or none
    that can be read: a gateway goes on without it, which the log says."""
    shipped = shipped_list()
    if not kept:
        return shipped
    try:
        listed = PriceList(Path(kept))
        about = msgspec.json.decode(listed.text.readline(), type=dict[str, str])
        listed.about = {**about, "file": kept}
    except FileNotFoundError:
        return shipped
    except (OSError, ValueError) as error:
        why = in_words(error)
        _log.warning("the list of prices cannot be read, LiteLLM's is used", file=kept, why=why)
        return shipped
    listed.beneath = shipped
    return listed


@cache
def shipped_list() -> PriceList | None:
    """The list in the installed LiteLLM; None when it is not installed."""
    paths = (folder / LIST_NAME for folder in litellm_folders())
    return next((PriceList(path) for path in paths if path.is_file()), None)


def _spellings(model: str) -> Iterator[tuple[str, Sequence[str] | None]]:
    """Names to look for, and the owners an entry under that name must have (None: any). Without its
    provider a name is another model's unless the list files it under that provider: a price of
    OpenAI's says nothing about a server of one's own with the same model name."""
    if model.startswith("arn:"):  # of a profile that AWS defines; one's own has a random name
        yield model.rpartition("/")[2], _FILED_UNDER["bedrock"]
        return
    model = re.sub(r"^([a-z_]+):(?=[^/]+$)", r"\1/", model)
    provider, slash, _ = model.partition("/")
    owners = _FILED_UNDER.get(provider, [provider])
    for spelled in dict.fromkeys([model, _DATE.sub("", model)]):
        yield spelled, None
        if slash:
            yield spelled.partition("/")[2], owners


def _info(entry: Fields, name: str) -> ModelInfo:
    thresholds = {int(found[1]) * 1000 for key in entry if (found := _ABOVE.search(key))}
    base = _rates(entry, "", {})
    if entry.get("mode") == "image_generation":  # tokens of pictures cost more than others
        base = {**base, **{k: entry[name] for k, name in _IMAGE_RATES.items() if name in entry}}
    tiers = [(at, _rates(entry, f"_above_{at // 1000}k_tokens", base)) for at in thresholds]
    served = list_at(entry, "supported_endpoints") or [f"/v1/{entry.get('mode')}"]
    return ModelInfo(
        provider=as_text(entry.get("litellm_provider"), None),
        max_input_tokens=as_int(entry.get("max_input_tokens", entry.get("max_tokens")), None),
        tools=as_bool(entry.get("supports_function_calling"), None),
        vision=_vision(entry),
        response_schema=as_bool(entry.get("supports_response_schema"), None),
        reasoning=as_bool(entry.get("supports_reasoning"), None),
        listed=Listed(
            max_output_tokens=as_int(entry.get("max_output_tokens"), None),
            lacks=frozenset(k for k, v in entry.items() if v is False and k[:9] == "supports_"),
            adaptive_thinking=as_bool(entry.get("supports_adaptive_thinking"), None),
            may_not_reason=entry.get("supports_none_reasoning_effort") is True,
            is_chat_tuned="-chat" in name,
            only_responses="/v1/responses" in served and "/v1/chat/completions" not in served,
        ),
        tiers=(*sorted(tiers, key=lambda tier: -tier[0]), (-1, base)),
        services=_services(entry, base),
    )


def _services(entry: Fields, base: Rates) -> Mapping[str, Rates]:
    """The rates of classes of service, each divided by that of `base`."""
    stated = mapping_at(entry, "provider_specific_entry")
    found = {
        name: dict.fromkeys(RATE_KEYS, as_number(stated.get(name), 1.0)) for name in ("fast", "us")
    }
    for name in ("priority", "flex", "ultrafast"):
        own = _rates(entry, f"_{name}", base)
        found[name] = {kind: rate / (base.get(kind) or 1.0) for kind, rate in own.items()}
    return found


def _vision(entry: Fields) -> bool | None:
    """Whether a model reads images; a chat model whose entry says nothing does not: of 1,578 such
    models of LiteLLM 1.106 one in six may. An image sent to a model that cannot read it is lost or
    refused, one kept from a model that could is answered by the model the client asked for."""
    stated = as_bool(entry.get("supports_vision", entry.get("supports_image_input")), None)
    if stated is not None:
        return stated
    if inputs := list_at(entry, "supported_modalities"):
        return "image" in inputs
    if entry.get("mode") in ("chat", "responses"):
        return False
    return None


_IMAGE_RATES = {"input": "input_cost_per_image_token", "output": "output_cost_per_image_token"}


def _rates(entry: Fields, suffix: str, base: Rates) -> Rates:
    """The rates under keys that end in `suffix`; a missing one is that of `base`."""
    return {
        kind: rate
        for kind, key in RATE_KEYS.items()
        if (rate := as_number(entry.get(key + suffix), base.get(kind))) is not None
    }
