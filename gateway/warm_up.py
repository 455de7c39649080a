"""Imports and loads what steering needs, before the first request."""

from __future__ import annotations

from gateway.config import Settings
from gateway.steering.fold import ConversationFold
from gateway.steering.scoring.calibration import shipped_calibration
from gateway.steering.transcript.steps import Action, Step
from gateway.text.finder import Finder
from gateway.upstream.prices import default_list
from gateway.wire.search import use_engine


def warm_up(settings: Settings) -> None:
    """Import and load what steering needs: the first request has a deadline, the start has none."""
    use_engine(Finder)
    fold = ConversationFold(settings.policy())
    fold.extend([{"role": "user", "content": "-"}, {"role": "assistant", "content": "-"}])
    fold.current.push(Step(index=0, thought="-", actions=(Action(name="-"),)))
    shipped_calibration()
    default_list()
