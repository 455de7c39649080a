"""Composition root: what lives as long as one config."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.config import Settings
from gateway.conversations.index import ConversationIndex
from gateway.conversations.judge import Judge
from gateway.conversations.recall import Recall
from gateway.conversations.session import Lookup, Past, Steering, SteeringRules
from gateway.observability.metrics import Metrics
from gateway.steering.etrace.target import Target as GuidanceTarget
from gateway.steering.etrace.target import target_for
from gateway.steering.policy import Policy
from gateway.tasks import spawn
from gateway.upstream.catalogue import ModelCatalogue
from gateway.upstream.deployments import DeploymentTable
from gateway.upstream.dispatch import INSTANCE_HEADER, Dispatcher
from gateway.upstream.litellm import LiteLLMLane
from gateway.upstream.native import NativeLane


class Services:
    """What a request needs, built from one version of the settings; must be made on the loop."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        index: ConversationIndex,
        lookup: Lookup | None,
        past: Past | None,
        instance: str,
    ) -> None:
        self.settings = settings
        self.table = DeploymentTable(settings, os.environ)
        self.native = NativeLane(settings.timeouts, max_connections=settings.router.max_connections)
        self.foreign = LiteLLMLane(
            self.native, settings.timeouts, headers={INSTANCE_HEADER.decode(): instance}
        )
        self.dispatcher = Dispatcher(
            self.table,
            self.native,
            self.foreign,
            settings.router,
            metrics,
            instance=instance.encode(),
        )
        infos = {d.model_name: d.model_info for d in settings.model_list}
        self.catalogue = ModelCatalogue(self.table, infos)
        self.index = index
        self.recall = Recall(index, settings.conversations)
        policy = settings.policy()
        self.policy_digest = policy.digest()
        self.steering = Steering(
            self._rules(policy),
            lookup,
            past,
            self._judge(metrics),
            deadline_s=settings.steering.deadline_ms / 1000,
        )
        self._users = 0
        self._retired = False

    def _rules(self, policy: Policy) -> SteeringRules:
        settings = self.settings
        return SteeringRules(
            policy=policy,
            routes=settings.routes(),
            routing=settings.routing,
            acting=settings.steering.acting(),
            wrap_up_at=settings.steering.wrap_up_at,
            etraces=settings.etraces,
            injection=settings.injection,
            target_of=self._guidance_target,
            serves=self.catalogue.refusal,
        )

    def _judge(self, metrics: Metrics) -> Judge | None:
        limit_s = self.settings.judge_limit_s()
        if limit_s is None:
            return None
        return Judge(
            self.settings.difficulty.judge,
            self.dispatcher,
            limit_s=limit_s,
            count=lambda result: metrics.judgements.labels(result).inc(),
        )

    def _guidance_target(self, model: str) -> GuidanceTarget:
        target = self.table.resolve(model)[0]
        return target_for(target.provider, target.model or model, target.api_base.host)

    @contextmanager
    def in_use(self) -> Iterator[Services]:
        """Keep these services open for one request, also when the config is replaced meanwhile."""
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1
            if self._retired and not self._users:
                spawn(self.aclose())

    def retire(self) -> None:
        """No new request will come: close as soon as the last one has left."""
        self._retired = True
        if not self._users:
            spawn(self.aclose())

    async def aclose(self) -> None:
        """Close the connections."""
        await self.native.aclose()
