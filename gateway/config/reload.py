"""Settings that a reload of the config does not change, and changes that it refuses."""

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from typing import Any

from gateway.config.settings import Deployment, Settings, UpstreamSettings
from gateway.data_files import read_toml
from gateway.hooks import given
from gateway.values import Texts

_RELOAD = read_toml(__package__, "reload.toml")
_AT_START: list[str] = _RELOAD["at_start"]
_CLOSING: list[str] = _RELOAD["closing"]


def changes_at_restart(old: Settings, new: Settings) -> list[str]:
    """The keys that differ and take effect at the next start only."""
    return [key for key in _AT_START if attrgetter(key)(old) != attrgetter(key)(new)]


def differences(old: Settings, new: Settings) -> dict[str, str]:
    """Both values of each key path that differs, without secrets."""
    pairs = {each.name: (getattr(old, each.name), getattr(new, each.name)) for each in fields(old)}
    for name, both in list(pairs.items()):
        if is_dataclass(both[0]):
            parts = (part.name for part in fields(both[0]))
            pairs |= {f"{name}.{part}": tuple(getattr(v, part) for v in both) for part in parts}
            del pairs[name]
    return {name: f"{a!r} to {b!r}" for name, (a, b) in pairs.items() if a != b}


def removals(old: Settings, new: Settings, env: Texts) -> list[str]:
    """Returns the key paths of protecting or directing settings that `old` has and `new` lacks.
    A config that was cut while it was written must open nothing: a reload with any of these is
    refused, while a restart, which a person asks for, applies it. A value that is the beginning
    of the old one counts as cut. Additional keys, deployments and budgets, and other values, are
    accepted. `env`: the environment; `OPENAI_BASE_URL` replaces a missing address."""
    lost = []
    defaults = Settings()
    if base := env.get("OPENAI_BASE_URL"):
        defaults = replace(defaults, default_upstream=UpstreamSettings(api_base=base))
    for key in _CLOSING:
        before, after, default = (attrgetter(key)(each) for each in (old, new, defaults))
        if before != after and (after == default or _is_cut(before, after)):
            lost.append(key)
    lost += _missing_deployments(old.model_list, new.model_list)
    lost += [
        f"model_routing.{state}" for state in old.model_routing if state not in new.model_routing
    ]
    for model, routes in old.model_routing_by_model.items():
        kept = new.model_routing_by_model.get(model, {})
        lost += [f"model_routing_by_model.{model}.{state}" for state in routes if state not in kept]
    for lost_by in given("lost"):
        lost += lost_by(old, new)
    return lost


def as_started(old: Settings, new: Settings) -> Settings:
    """Returns `new`, but keeps the settings from `old` that need a restart, so that none takes
    effect in part: otherwise a broken `storage` section could have content stored that was not
    to be."""
    for path in _AT_START:
        section, _, key = path.partition(".")
        value = getattr(old, section)
        if key:
            value = replace(getattr(new, section), **{key: getattr(value, key)})
        new = replace(new, **{section: value})
    return new


def _is_cut(before: Any, after: Any) -> bool:
    texts = isinstance(before, str) and isinstance(after, str)
    return texts and before != after and before.startswith(after)


def _missing_deployments(old: Iterable[Deployment], new: Iterable[Deployment]) -> Iterator[str]:
    """Old deployments for which none of the same name has at least the same keys."""
    left = list(new)
    for deployment in old:
        before = deployment.litellm_params
        for each in left:
            given = each.litellm_params
            same = (each.model_name, each.lane) == (deployment.model_name, deployment.lane)
            if same and all(k in given and not _is_cut(before[k], given[k]) for k in before):
                left.remove(each)
                break
        else:
            yield f"model_list[{deployment.model_name}]"
