"""The ledger of steering: what each act saved or cost in US dollars, against a baseline it names.

A row has a saving only where its baseline is known: prices for routing, the runs of a control arm
for everything that changes what an agent does. Rows overlap and are never added up."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import fsum, hypot

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.features.reports.winsorised_means import FEWEST_UNITS, Spent, reach, total
from gateway.stores.learning import JOBS
from gateway.stores.totals import ExperimentRun
from gateway.tasks import off_loop
from gateway.text.formatting import count, counted, money, percent
from gateway.upstream.token_estimates import BYTES_PER_TOKEN
from gateway.values import Value

_CONTROLS = ("off", "shadow")  # arms whose requests are sent unchanged, in order of preference
Runs = Sequence[ExperimentRun]


class Saving(Value):
    """One act of steering, and what it saved."""

    act: str  # such as routing or advice
    baseline: str  # what the act is compared with
    runs: int = 0  # those that the amounts are about
    note: str  # what is known and what is not, for people
    spent_usd: float | None = None  # US dollars of the runs with the act; None for an unknown price
    # what the baseline would have cost, less `spent_usd`: negative for a loss, None for no
    # comparison or an unknown price
    saved_usd: float | None = None
    # to either side of `saved_usd`, 95 %; None for what is no estimate over runs
    reach_usd: float | None = None


async def read_savings(
    stores: Stores, since: float, until: float, tenant: str | None
) -> tuple[list[Saving], Runs]:
    """The ledger of the runs that began at or after `since` and before `until` (epoch), and these
    runs. Raises: StoreError."""
    runs = await stores.runs.experiment_runs(None, tenant=tenant, since=since, until=until)
    tokens, usd = await stores.learning.spent(JOBS, tenant, since)
    later_tokens, later_usd = await stores.learning.spent(JOBS, tenant, until)
    spent = max(0.0, usd - later_usd)
    return await off_loop(savings, runs, tokens - later_tokens, reader_usd=spent), runs


def savings(runs: Runs, reader_tokens: int = 0, reader_usd: float = 0.0) -> list[Saving]:
    """Returns the ledger of these runs. `reader_tokens`, `reader_usd`: used by `reader.model` in
    that time."""
    compared = _experiments(runs)
    rows = [_routing(runs), *compared.values()]
    guided = [run for run in runs if run.text_chars]
    alone = sum(run.experiment not in compared for run in guided)
    if alone or not compared:
        rows.append(
            Saving(
                act="guidance, lessons, hand-over",
                baseline="the same runs without them: unknown",
                runs=alone,
                note="no comparison: run `gateway pilot start`",
            )
        )
    if stopped := [run for run in runs if run.stopped and run.stopped.action == "stop"]:
        rows.append(_stopped(stopped))
    if guided:
        rows.append(_texts(guided))
    if reader_tokens or reader_usd:
        rows.append(_reader(reader_tokens, reader_usd))
    return rows


def _routing(runs: Runs) -> Saving:
    """Returns the row of routing: the sum, over runs, of what the same tokens cost at the
    requested models' prices less their actual cost. The interval is that of the sum over as many
    runs like these."""
    priced = [run for run in runs if run.saved_usd is not None]
    unpriced = [run for run in runs if run.calls and run.saved_usd is None]
    note = "" if priced else "no run"
    if unpriced:
        calls = counted(sum(run.calls for run in unpriced), "call")
        note = f"{counted(len(unpriced), 'run')} ({calls}) without all prices left out"
    saved = [(run.unit, run.saved_usd or 0.0) for run in priced]
    return Saving(
        act="routing",
        baseline="the same calls, cached as they were, at the requested model's prices",
        runs=len(priced),
        note=note,
        spent_usd=fsum(run.cost_usd or 0.0 for run in priced) if priced else None,
        saved_usd=total(saved) if priced else None,
        reach_usd=reach(saved),
    )


def _experiments(runs: Runs) -> dict[str, Saving]:
    """The rows of the experiments that have steered runs and a control arm, by name."""
    arms: dict[tuple[str, str | None], list[ExperimentRun]] = defaultdict(list)
    for run in runs:
        if run.experiment is not None:
            arms[run.experiment, run.arm].append(run)
    rows = {}
    for name in sorted({name for name, _ in arms}):
        control = next((arm for arm in _CONTROLS if (name, arm) in arms), None)
        if control is not None and (name, "on") in arms:
            rows[name] = _experiment(name, arms[name, "on"], control, others=arms[name, control])
    return rows


def _experiment(name: str, on: Runs, control: str, others: Runs) -> Saving:
    """Returns the row of an experiment. The saving is the control's mean cost times the number
    of steered runs, less the cost of the steered runs."""
    costs = _costs(on)
    other_costs = _costs(others)
    own_reach = reach(costs)
    other_reach = reach(other_costs)
    unpriced = len(on) + len(others) - len(costs) - len(other_costs)
    left_out = ""
    if unpriced:
        left_out = f"; {counted(unpriced, 'run')} of unknown cost left out"
    few = f"no comparison yet: fewer than {FEWEST_UNITS} units of known cost in an arm"
    row = Saving(
        act=f"steering in {name}",
        baseline=f"as many runs at the mean cost of those in {control}",
        runs=len(costs),
        note=few + left_out,
    )
    if own_reach is None or other_reach is None:
        return row
    spent = total(costs)
    other_mean = total(other_costs) / len(other_costs)
    return replace(
        row,
        note=f"on {money(spent / len(costs))} a run, {_solved(on)}; {control} {money(other_mean)}, "
        f"{_solved(others)}{left_out}; with routing and texts",
        spent_usd=spent,
        saved_usd=other_mean * len(costs) - spent,
        # Both arms vary; the control's sum is scaled to as many runs as were steered.
        reach_usd=hypot(own_reach, other_reach * len(costs) / len(other_costs)),
    )


def _solved(runs: Runs) -> str:
    """Describes the share of runs with an outcome that were solved, and the cost of all of these
    runs per solved one."""
    judged = [run for run in runs if run.outcome in ("success", "failure")]
    solved = sum(run.outcome == "success" for run in judged)
    costs = _costs(judged)
    each = (
        f" at {money(total(costs) / solved)} each" if solved and len(costs) == len(judged) else ""
    )
    return f"{percent(solved / (len(judged) or 1))} of {len(judged):,} solved{each}"


def _stopped(runs: Runs) -> Saving:
    """Returns the row of stopped runs: their cost when they were stopped. What they would have
    cost is unknown."""
    kinds = Counter(run.stopped.words for run in runs if run.stopped)
    words = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    costs = _costs(runs)
    return Saving(
        act="runs stopped",
        baseline="what they would have gone on to cost: unknown",
        runs=len(runs),
        note=f"{words}; spent before, not saved",
        spent_usd=total(costs) if len(costs) == len(runs) else None,
    )


def _texts(guided: Runs) -> Saving:
    """Returns the row of texts: the cost of the input tokens that steering added to calls."""
    tokens = 0.0
    costs = []
    for run in guided:
        if run.cost_usd is not None and run.text_chars > 0 and run.tokens:
            of_texts = min(run.tokens, run.text_chars / BYTES_PER_TOKEN)
            tokens += of_texts
            costs.append(of_texts / run.tokens * run.cost_usd)
    note = f"about {count(tokens)} tokens with every reading, at the mean price of their run"
    if unknown := len(guided) - len(costs):
        note += f"; {counted(unknown, 'run')} of unknown price or text left out"
    usd = fsum(costs)
    return Saving(
        act="texts that steering added",
        baseline="the same calls without these texts",
        runs=len(costs),
        note=note,
        spent_usd=usd if costs else None,
        saved_usd=-usd if costs else None,
    )


def _reader(tokens: int, usd: float) -> Saving:
    return Saving(
        act="the reader's model",
        baseline="none of its calls",
        note=f"{count(tokens)} tokens" + ("" if usd else " of unknown price"),
        spent_usd=usd or None,
        saved_usd=-usd or None,
    )


def _costs(runs: Runs) -> Spent:
    return [(run.unit, run.cost_usd) for run in runs if run.cost_usd is not None]
