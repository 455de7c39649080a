"""An existing config of the LiteLLM proxy, which loads unchanged.

Source: its config reference (`model_list`, `router_settings`, `litellm_settings`,
`general_settings`, `environment_variables`)."""

import re
from collections.abc import Iterator

from gateway.data_files import read_toml
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import as_list, as_mapping, list_at, mapping_at, mappings_at, objects

_ROUTER_KEYS = {name: name for name in ("num_retries", "fallbacks", "allowed_fails")}
_ROUTER_KEYS["cooldown_time"] = "cooldown_s"
_TIMEOUT_KEYS = {"timeout": "first_byte_s", "request_timeout": "first_byte_s"}
_MOVED_SECTIONS = ("router_settings", "litellm_settings")
LITELLM_SECTIONS = (*_MOVED_SECTIONS, "general_settings", "environment_variables")
_LITELLM = read_toml(__package__, "litellm.toml")
OTHER_SECTIONS = frozenset(_LITELLM["sections"])
ENTRY_KEYS = frozenset(_LITELLM["entry_keys"])
_NOT_HONOURED = [(re.compile(k, re.MULTILINE), v) for k, v in _LITELLM["not_honoured"].items()]
_NAMING = tuple(_LITELLM["lists"])
_PARTS = ("litellm_params", "model_info")
CLOSING_SECTIONS = (
    "auth",
    "budgets",
    "control",
    "default_upstream",
    "model_list",
    "server",
    "steering",
    "storage",
)
_USED_KEYS = frozenset(
    {*_ROUTER_KEYS, *_TIMEOUT_KEYS, "default_fallbacks", "master_key", "model_group_alias"}
    | {"context_window_fallbacks", "content_policy_fallbacks"}
)


def translate(raw: FieldDict) -> FieldDict:
    """`raw` without LiteLLM's sections: what applies here is moved to the gateway's own, which win;
    keys of features that only the LiteLLM proxy has are dropped (see `ignored_keys`)."""
    out = {k: v for k, v in raw.items() if k not in OTHER_SECTIONS.union(LITELLM_SECTIONS)}
    for each in objects(out.get("model_list")):
        for key in ENTRY_KEYS.intersection(each):
            del each[key]
    aliases: FieldDict = {}
    for section in _MOVED_SECTIONS:
        aliases |= mapping_at(mapping_at(raw, section), "model_group_alias")
    for section in _MOVED_SECTIONS:
        values = mapping_at(raw, section)
        own = values.get("fallbacks") or []
        default = values.get("default_fallbacks")
        if isinstance(own, list):
            if isinstance(default, list):
                last = [{"*": default}]
            else:
                last = []
            values = {
                **values,
                "fallbacks": [*own, *_further_fallbacks(values, aliases), *last] or None,
            }
        _move(values, _ROUTER_KEYS, out, section="router")
        _move(values, _TIMEOUT_KEYS, out, section="timeouts")
    _add_aliases(aliases, out)
    if master := mapping_at(raw, "general_settings").get("master_key"):
        auth = out.setdefault("auth", {})
        if isinstance(auth, dict):
            auth.setdefault("admin_key", master)
            auth.setdefault("gateway_keys", {"default": master})
    return out


def misplaced(raw: Fields) -> list[str]:
    """Returns errors for settings that have no effect where they stand: a section of the gateway
    inside values that accept any key, and sections of LiteLLM that are no mappings. A wrong
    indentation is enough, and the setting would look as if it closed or directed something."""
    places = {name: raw.get(name) for name in LITELLM_SECTIONS}
    faults = [
        f"{name}: expected a mapping of keys to values"
        for name, value in places.items()
        if value and not isinstance(value, dict)
    ]
    places |= {name: raw.get(name) for name in OTHER_SECTIONS}
    for i, deployment in enumerate(mappings_at(raw, "model_list")):
        for name in _PARTS:
            places[f"model_list[{i}].{name}"] = deployment.get(name)
    return faults + [
        f"{place}.{section}: a section of its own, which begins at the left margin"
        for place, value in places.items()
        if isinstance(value, dict)
        for section in CLOSING_SECTIONS
        if isinstance(value.get(section), (dict, list))
    ]


def ignored_keys(raw: FieldDict) -> dict[str, str]:
    """Returns the key paths of LiteLLM that have no effect here, for `gateway check-config`. A
    key that closes or limits something in LiteLLM comes with the setting that does so here;
    others with an empty text. Other keys within a deployment do have an effect."""
    sections = {name: raw.get(name) for name in (*_MOVED_SECTIONS, "general_settings")}
    for i, each in enumerate(mappings_at(raw, "model_list")):
        sections[f"model_list[{i}]"] = {k: v for k, v in each.items() if k in ENTRY_KEYS}
        sections |= {f"model_list[{i}].{part}": each.get(part) for part in _PARTS}
    found = {name: raw[name] for name in raw if name in OTHER_SECTIONS}
    for section, values in sections.items():
        given = as_mapping(values).items()
        found |= {f"{section}.{k}": v for k, v in given if k not in _USED_KEYS}
    for path, value in found.items():
        names = as_list(value) if path.endswith(_NAMING) else ()
        text = "\n".join([path, *(f".{name}" for name in names)])
        rows = (here for each, here in _NOT_HONOURED if value and each.search(text))
        found[path] = next(rows, "")
    return {path: here for path, here in found.items() if here or path.count(".") < 2}


def written_as(path: str) -> list[str]:
    """The key paths by which a file may have set the key at `path`; its own is the first."""
    found = [path]
    for names, ours in ((_ROUTER_KEYS, "router"), (_TIMEOUT_KEYS, "timeouts")):
        for theirs, key in names.items():
            if path == f"{ours}.{key}" or path.startswith((f"{ours}.{key}.", f"{ours}.{key}[")):
                rest = path.removeprefix(f"{ours}.{key}")
                found += [f"{section}.{theirs}{rest}" for section in _MOVED_SECTIONS]
    if path in ("auth.admin_key", "auth.gateway_keys.default"):
        found.append("general_settings.master_key")
    return found


def _add_aliases(aliases: Fields, out: FieldDict) -> None:
    """Add the deployments of each name again under its aliases."""
    listed = objects(out.get("model_list"))
    known = [deployment.get("model_name") for deployment in listed]
    for alias, of in aliases.items():
        named = as_mapping(of).get("model", of)
        also = [d | {"model_name": alias} for d in listed if d.get("model_name") == named]
        if alias not in known:
            as_list(out.get("model_list")).extend(also)


_CONTENT_FALLBACKS = ("context_window", "content_policy")


def _further_fallbacks(values: Fields, aliases: Fields) -> Iterator[FieldDict]:
    """Returns further entries of `router.fallbacks`: LiteLLM's fallbacks by reason (context
    window, content policy), and those that aliases of a name bring."""
    marks = {f"{kind}_fallbacks": f"{kind}:" for kind in _CONTENT_FALLBACKS}
    for key, mark in {"fallbacks": "", **marks}.items():
        known: FieldDict = {}
        for entry in list_at(values, key):
            known |= as_mapping(entry)
        given = known.copy() if mark else {}
        for alias, of in aliases.items():
            named = as_mapping(of).get("model", of)
            if alias not in known and named in known:
                given[alias] = known[named]
        yield from ({f"{mark}{name}": models} for name, models in given.items())


def _move(values: Fields, names: dict[str, str], out: FieldDict, section: str) -> None:
    for theirs, ours in names.items():
        if values.get(theirs) is not None:
            target = out.setdefault(section, {})
            if isinstance(target, dict):
                target.setdefault(ours, values[theirs])
