"""Settings that a reload of the config does not change, and changes that it refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from gateway.config.settings import Deployment, KeyRights, Settings

_AT_START: Final = (
    *("server.host", "server.port", "server.workers", "server.drain_s"),
    *("server.max_concurrent_requests", "server.max_pipelined_requests", "server.keep_alive_s"),
    *("server.max_head_kb", "server.max_head_fields", "server.max_head_s"),
    *("steering.max_conversations_in_memory", "steering.max_transcripts_in_memory"),
    *("steering.max_transcript_memory_mb", "steering.max_prefix_memory_mb"),
    *("storage", "embedding", "logging", "observability"),
)
"""Sections and keys that are read once, when the gateway starts."""

# Each of these closes something, or says where calls go. Back at its default it may be a line that
# is missing from a file that somebody is writing just now.
_CLOSING: Final = (
    *("default_upstream.api_base", "default_upstream.api_key"),
    *("default_upstream.messages_api_base", "default_upstream.provider_prefixes"),
    *("auth.admin_key", "auth.wrong_keys_per_minute", "auth.stale_s"),
    *("server.trusted_hosts", "server.trusted_origins"),
    *("preset", "steering.mode"),
    *("steering.token_budget", "steering.budget_action", "steering.stop_above"),
)


def changes_at_restart(old: Settings, new: Settings) -> list[str]:
    """The keys that differ and take effect at the next start only."""
    return [key for key in _AT_START if attrgetter(key)(old) != attrgetter(key)(new)]


def removals(old: Settings, new: Settings) -> list[str]:
    """The key paths of what protects or directs calls in `old`, and is missing from `new`.

    A config that was cut while it was written must open nothing: a reload with any of these is
    refused, and a restart, which somebody asks for, applies it. A value that is the beginning of
    the old one counts as cut. Further keys, deployments and budgets, and other values, are taken.
    """
    lost = []
    defaults = Settings()
    for key in _CLOSING:
        before, after, default = (attrgetter(key)(each) for each in (old, new, defaults))
        if before != after and (after == default or _is_cut(before, after)):
            lost.append(key)
    keys = new.auth.gateway_keys
    for tenant, gateway_key in old.auth.gateway_keys.items():
        if tenant not in keys or _is_cut(gateway_key, keys[tenant]):
            lost.append(f"auth.gateway_keys.{tenant}")
    for name, rights in old.auth.rights.items():
        now = new.auth.rights.get(name, KeyRights())
        for kind in ("routes", "models"):
            if "*" in getattr(now, kind) and "*" not in getattr(rights, kind):
                lost.append(f"auth.rights.{name}.{kind}")
    lost += _missing_deployments(old.model_list, new.model_list)
    own, other = old.model_routing, new.model_routing
    lost += [f"model_routing.{state}" for state in own if state not in other]
    for model, routes in old.model_routing_by_model.items():
        kept = new.model_routing_by_model.get(model, {})
        lost += [f"model_routing_by_model.{model}.{state}" for state in routes if state not in kept]
    missing = (_budgets(old) - _budgets(new)).elements()
    return lost + [f"budgets[{name}]" for name in sorted(missing)]


def as_started(old: Settings, new: Settings) -> Settings:
    """`new` with what takes effect at the next start as it is in `old`, so that nothing of it holds
    by half: a cut `storage` must not have content stored that was not to be."""
    for path in _AT_START:
        section, _, key = path.partition(".")
        value = getattr(old, section)
        if key:
            value = replace(getattr(new, section), **{key: getattr(value, key)})
        new = replace(new, **{section: value})
    return new


def is_cut(before: str, after: str) -> bool:
    """Whether a file has become a beginning of itself."""
    return before.rstrip() != after.rstrip() and before.startswith(after.rstrip())


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


def _budgets(settings: Settings) -> Counter[str]:
    """Each budget, its limits, and what it does at the end, by name."""
    parts = Counter[str]()
    for budget in settings.budgets:
        what = [*budget.limits.given(), *(step.name for step in budget.ladder)]
        parts.update([budget.name, *(f"{budget.name}.{each}" for each in set(what))])
    return parts
