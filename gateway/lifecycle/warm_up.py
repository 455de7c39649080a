"""Imports and loads what steering needs, before the first request."""

from __future__ import annotations

from gateway.config import Settings
from gateway.steering.fold import ConversationFold
from gateway.steering.scoring.calibration import shipped_calibration
from gateway.steering.transcript.steps import Action, Step
from gateway.text.finder import Finder
from gateway.text.secrets import mask_secrets
from gateway.upstream.prices import default_list
from gateway.wire.search import use_engine


def warm_up(settings: Settings) -> None:
    """Import and load what steering needs: the first request has a deadline, the start has none."""
    use_engine(Finder)
    fold = ConversationFold(settings.policy())
    fold.extend([{"role": "user", "content": "-"}, {"role": "assistant", "content": "-"}])
    action = Action(name="-", arguments="{}", observation="at 10:15")
    fold.current.push(Step(index=0, thought="-", actions=(action,)))
    mask_secrets("-")
    shipped_calibration()
    default_list()
