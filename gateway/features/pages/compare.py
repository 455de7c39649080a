"""`/api/runs/{run_id}/compare`: two runs or sessions step by step, and where they part.

Steps are the same when what the agent answered at them is: calls that are the same to the ledger
of tries, or equal words without a call. After the beginning that both have in common, steps are
aligned by the longest stretches of equal ones."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import count

from gateway.api.operations import ApiRequest, ApiResponse
from gateway.api.params import PathText
from gateway.api.runs import RunOfTenant, run_named, unknown_run
from gateway.features.pages.sent_again import OPERATIONS
from gateway.runtime import Runtime
from gateway.steering.evidence.action_facts import describe_action
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.records import StepRow
from gateway.stores.totals import RunRecord
from gateway.tasks import off_loop
from gateway.values import FieldDict

_MOST_STEPS = 1000  # steps of each side that are compared: a bound on the time that it takes


class CompareParameters(RunOfTenant):
    """Two runs or sessions: ids of runs, or of conversations for all runs of their agents."""

    other: PathText  # id of the second one


@OPERATIONS.add("GET /api/runs/{run_id}/compare", FieldDict, "Aligned where they part.")
async def compare_runs(request: ApiRequest[CompareParameters]) -> ApiResponse:
    """Two runs or sessions: `sides` with their runs and steps; and `blocks` of steps that are equal
    or differ, as Python's `difflib` writes them: `equal` or another word, the places of the steps
    of the first side, those of the second."""
    ids = (request.params.run_id, request.params.other)
    sides = [await _side(request.runtime, given, request.tenant) for given in ids]
    blocks = await off_loop(_blocks, *[side["steps"] for side in sides])
    return ApiResponse({"sides": sides, "blocks": blocks})


async def _side(runtime: Runtime, given: str, tenant: str | None) -> FieldDict:
    """The run of an id; for the id of a conversation all its runs, the oldest first."""
    run = await run_named(runtime.runs, given, tenant)
    if run is None:
        raise unknown_run(given)
    runs: Sequence[RunRecord] = [run]
    if run.id != given:
        wanted = RunFilter(tenant=tenant, conversation_id=run.conversation_id)
        page = PageRequest(limit=50, descending=False)
        runs = (await runtime.runs.list_runs(wanted, page)).runs
    steps: list[StepRow] = []
    for each in runs:
        trace = await runtime.runs.get_run(each.id, tenant=tenant, limit=_MOST_STEPS)
        steps += trace.steps if trace else ()
    return {"id": given, "runs": runs, "steps": steps[:_MOST_STEPS]}


def _blocks(first: Sequence[StepRow], second: Sequence[StepRow]) -> object:
    return SequenceMatcher(None, _keys(first), _keys(second), autojunk=False).get_opcodes()


def _keys(steps: Sequence[StepRow]) -> list[tuple[str, int]]:
    """The keys of steps, each with how often it came before: none comes twice, so that a common
    beginning stays one, and loops cost no more time than other steps."""
    times = defaultdict[str, Iterator[int]](count)
    return [(key := _key(step), next(times[key])) for step in steps]


def _key(step: StepRow) -> str:
    """Equal for the same step; of one without stored texts, for itself alone."""
    content = step.content
    if content is None:
        return f"{step.run_id} {step.step_index}"
    if content.reply_actions:
        return str([describe_action(action).call for action in content.reply_actions])
    return content.reply_text
