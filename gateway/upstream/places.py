"""Which upstream keeps an answer: later requests about it, or that go on from it, belong there."""

from __future__ import annotations

from collections import OrderedDict

from gateway.upstream.deployments import Target

MAX_PLACES = 8192
"""Answers remembered, those used longest ago dropped first; a few hundred bytes each."""


class Places:
    """Answers by tenant and id, where they are not with the default upstream."""

    def __init__(self) -> None:
        self._targets: OrderedDict[tuple[str, str], Target] = OrderedDict()

    def put(self, tenant: str, name: str, target: Target) -> None:
        """Remember that the answer `name` came from a deployment's target."""
        if not target.key or target.lane != "native":
            return  # the default upstream, or one that keeps no answers
        self._targets[tenant, name] = target
        self._targets.move_to_end((tenant, name))
        while len(self._targets) > MAX_PLACES:
            self._targets.popitem(last=False)

    def find(self, tenant: str, name: str | None) -> Target | None:
        """Where the answer came from, if that is known."""
        return self._targets.get((tenant, name)) if name else None
