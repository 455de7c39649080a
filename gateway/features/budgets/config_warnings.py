"""Warnings about budgets of a config."""

from collections.abc import Iterator

from gateway.config import Settings
from gateway.features.budgets.settings import all_budgets, control_of
from gateway.upstream.model_abilities import ModelCatalogue


def doubts(settings: Settings, catalogue: ModelCatalogue) -> Iterator[str]:
    """Yields a warning, which begins with the setting, for each configured model without a known
    price while a budget counts dollars, and for a model that should stand in for these but has no
    price either."""
    control = control_of(settings)
    in_usd = [each.name for each in all_budgets(settings) if each.limits.usd is not None]
    how = f"count it as {control.unpriced_price}"
    if control.unpriced == "refuse":
        how = "refuse it"
    if in_usd and control.unpriced != "count_as":
        for path, name in catalogue.unpriced(settings):
            yield f"{path}: no price is known of {name!r}; budgets in dollars {how}"
    if control.unpriced_model and catalogue.price(control.unpriced_model) is None:
        yield f"control.unpriced_model: no price is known of {control.unpriced_model!r}, either"
