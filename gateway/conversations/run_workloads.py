"""What earlier outcomes say about the run of a request: its prior risk, its models' rates."""

from __future__ import annotations

from collections.abc import Callable

from gateway.conversations.steering_result import SteeringResult
from gateway.conversations.workloads import Workload, Workloads, workload_of
from gateway.dialects import SteeredRequest
from gateway.steering.routing_policy import WorkloadRates, candidates
from gateway.steering.scoring.risk import NO_OUTCOMES, WorkloadPrior
from gateway.steering.steer import SteeringRules
from gateway.wire.messages import tool_names


class RunWorkloads:
    """Answers for one set of rules. Without `workloads` nothing is known of any run.

    `price`: what a model costs, by which models are compared; None when it is not known.
    """

    def __init__(
        self,
        rules: SteeringRules,
        workloads: Workloads | None = None,
        price: Callable[[str], float | None] = lambda model: None,
    ) -> None:
        self._rules = rules
        self._workloads = workloads
        self._price = price

    def prior(self, result: SteeringResult, request: SteeredRequest) -> WorkloadPrior:
        """What is known of the workload of a run that would begin now."""
        if self._workloads is None:
            return NO_OUTCOMES
        workload = _workload(result, request)
        return self._workloads.prior(workload) if self._rules.routing.risk_prior else NO_OUTCOMES

    def rates(self, result: SteeringResult, request: SteeredRequest) -> WorkloadRates | None:
        """What the learned policy knows of the run's workload; None under another policy."""
        if self._workloads is None or self._rules.routing.policy != "learned":
            return None
        priced = {m: self._price(m) for m in candidates(self._rules.routes, request.model)}
        prices = {model: price for model, price in priced.items() if price is not None}
        run = result.conversation.run_id(result.run)
        return self._workloads.rates(_workload(result, request), run, prices)


def _workload(result: SteeringResult, request: SteeredRequest) -> Workload:
    """The workload of the newest run, which keeps the one that it began with."""
    run = result.conversation.run
    if run.workload is None:
        tools = tool_names(request.body)
        run.workload = workload_of(result.conversation.tenant, result.agent, tools, request.model)
    return run.workload
