"""The model names that settings outside `model_list` ask for."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.settings import Settings


def named_models(settings: Settings) -> Iterator[tuple[str, str]]:
    """(key path, model name) of every model that a setting names outside of the list."""
    for state, model in settings.model_routing.items():
        yield f"model_routing.{state}", model
    for requested, states in settings.model_routing_by_model.items():
        for state, model in states.items():
            yield f"model_routing_by_model.{requested}.{state}", model
    for index, entry in enumerate(settings.router.fallbacks):
        for requested, models in entry.items():
            for model in models:
                yield f"router.fallbacks[{index}].{requested}", model
    if settings.difficulty.scorer == "judge":
        yield "difficulty.judge.model", settings.difficulty.judge.model
    if settings.learning.model:
        yield "learning.model", settings.learning.model
    for index, budget in enumerate(settings.budgets):
        for step, each in enumerate(budget.ladder):
            if each.cheaper:
                yield f"budgets[{index}].ladder[{step}].cheaper", each.cheaper
