"""The ledger of steering: what each act saved or cost in US dollars, against a baseline it names.

A row has a saving only where its baseline is known: prices for routing, the runs of a control arm
for everything that changes what an agent does. Rows overlap and are never added up."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec import Struct

from gateway.backends import Stores
from gateway.reader.reader import JOBS
from gateway.reporting.amounts import student
from gateway.stores.totals import ExperimentRun
from gateway.text.formatting import count, counted, money, percent
from gateway.upstream.prices import BYTES_PER_TOKEN

_CONTROLS = ("off", "shadow")  # arms whose requests are sent unchanged, in order of preference
_FEWEST_UNITS = 5  # fewer do not show how much runs differ
Runs = Sequence[ExperimentRun]


class Saving(Struct, frozen=True):
    """One act. `runs`: those that the amounts are about. `saved_usd`: what the baseline would have
    cost, minus spent; negative for a loss; None: no comparison, or an unknown price. `reach_usd`:
    its 95 % interval to either side; None for what is no estimate over runs."""

    act: str
    baseline: str
    runs: int
    note: str
    spent_usd: float | None = None
    saved_usd: float | None = None
    reach_usd: float | None = None


async def read_savings(
    stores: Stores, since: float, until: float, tenant: str | None
) -> tuple[list[Saving], Runs]:
    """The ledger of the runs that began at or after `since` and before `until` (epoch), and these
    runs. Raises: StoreError."""
    begun = await stores.runs.experiment_runs(None, tenant=tenant, since=since)
    runs = [run for run in begun if run.started_at < until]
    paid, later = [await stores.learning.spent(JOBS, tenant, at) for at in (since, until)]
    return savings(runs, paid[0] - later[0], max(0.0, paid[1] - later[1])), runs


def savings(runs: Runs, reader_tokens: int = 0, reader_usd: float = 0.0) -> list[Saving]:
    """The ledger of these runs. `reader_...`: used by `reader.model`."""
    arms: dict[str, dict[str, list[ExperimentRun]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        arms[run.experiment or ""][run.arm or ""].append(run)
    compared = {
        name: _experiment(name, found["on"], control, found[control])
        for name, found in sorted(arms.items())
        if (control := next((arm for arm in _CONTROLS if arm in found), "")) and "on" in found
    }
    guided = [run for run in runs if run.text_chars]
    alone = [run for run in guided if run.experiment not in compared]
    if alone or not compared:
        about = "guidance, lessons, hand-over", "the same runs without them: unknown"
        compared[""] = Saving(*about, len(alone), "no comparison: run `gateway pilot start`")
    found = [_routing(runs), *compared.values(), *_stopped(runs), *_texts(guided)]
    if reader_tokens or reader_usd:
        about = "the reader's model", "none of its calls"
        note = f"{count(reader_tokens)} tokens" + ("" if reader_usd else " of unknown price")
        found.append(Saving(*about, 0, note, reader_usd or None, -reader_usd or None))
    return found


def _routing(runs: Runs) -> Saving:
    """The sum of what prices say of each run; the interval is that of as many runs like these."""
    known = [(run.unit, run.saved_usd) for run in runs if run.saved_usd is not None]
    spent = math.fsum(run.cost_usd or 0.0 for run in runs if run.saved_usd is not None)
    about = "routing", "the same calls, cached as they were, at the requested model's prices"
    left = [run for run in runs if run.calls and run.saved_usd is None]
    calls = counted(sum(run.calls for run in left), "call")
    note = f"{counted(len(left), 'run')} ({calls}) without all prices left out" if left else ""
    usd = (spent, math.fsum(saved for _, saved in known), _reach(known)) if known else ()
    return Saving(*about, len(known), note or ("" if known else "no run"), *usd)


def _experiment(name: str, on: Runs, control: str, others: Runs) -> Saving:
    """The difference of the mean costs of a run, times the runs that were steered."""
    about = f"steering in {name}", f"as many runs at the mean cost of those in {control}"
    arms = [[(r.unit, r.cost_usd) for r in arm if r.cost_usd is not None] for arm in (on, others)]
    size, other = map(len, arms)
    unpriced = counted(len(on) + len(others) - size - other, "run")
    left = "" if unpriced == "0 runs" else f"; {unpriced} of unknown cost left out"
    reach, other_reach = map(_reach, arms)
    if reach is None or other_reach is None:
        few = f"no comparison yet: fewer than {_FEWEST_UNITS} units of known cost in an arm"
        return Saving(*about, size, few + left)
    mean, control_mean = [math.fsum(usd for _, usd in arm) / len(arm) for arm in arms]
    note = f"on {money(mean)} a run, {_solved(on)}; {control} {money(control_mean)}, "
    note += f"{_solved(others)}{left}; with routing and texts"
    reach = math.hypot(reach, other_reach / other * size)
    return Saving(*about, size, note, mean * size, (control_mean - mean) * size, reach)


def _solved(runs: Runs) -> str:
    """The share solved of the runs with an outcome, and what all of these cost for each solved."""
    judged = [run for run in runs if run.outcome in ("success", "failure")]
    solved = sum(run.outcome == "success" for run in judged)
    costs = [run.cost_usd for run in judged if run.cost_usd is not None]
    each = f" at {money(sum(costs) / solved)} each" if solved and len(costs) == len(judged) else ""
    return f"{percent(solved / (len(judged) or 1))} of {len(judged):,} solved{each}"


def _reach(amounts: Sequence[tuple[str, float]]) -> float | None:
    """Half the 95 % interval of a sum over runs, those of one unit together; None for too few."""
    units: dict[str, float] = defaultdict(float)
    mean = math.fsum(amount for _, amount in amounts) / (len(amounts) or 1)
    for unit, amount in amounts:
        units[unit] += amount - mean
    size = len(units)
    if size < _FEWEST_UNITS:
        return None
    squares = math.fsum(rest**2 for rest in units.values())
    return student(size - 1.0) * math.sqrt(squares * size / (size - 1))


def _stopped(runs: Runs) -> list[Saving]:
    held = [(r.stopped.words, r.cost_usd) for r in runs if r.stopped and r.stopped.action == "stop"]
    kinds = Counter(words for words, _ in held)
    known = [usd for _, usd in held if usd is not None]
    note = ", ".join(f"{number} {words}" for words, number in kinds.most_common())
    about = "runs stopped", "what they would have gone on to cost: unknown"
    spent = math.fsum(known) if len(known) == len(held) else None
    return [Saving(*about, len(held), f"{note}; spent before, not saved", spent)] if held else []


def _texts(guided: Runs) -> list[Saving]:
    """The cost of the texts of steering for the models that read them."""
    known = [r for r in guided if r.cost_usd is not None and r.text_chars > 0 and r.tokens]
    tokens = [min(run.tokens, run.text_chars / BYTES_PER_TOKEN) for run in known]
    usd = math.fsum(n / r.tokens * (r.cost_usd or 0) for n, r in zip(tokens, known, strict=True))
    note = f"about {count(sum(tokens))} tokens with every reading, at the mean price of their run"
    if left := len(guided) - len(known):
        note += f"; {counted(left, 'run')} of unknown price or text left out"
    about = "texts that steering added", "the same calls without these texts"
    return [Saving(*about, len(known), note, *((usd, -usd) if known else ()))] if guided else []
