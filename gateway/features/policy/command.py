"""`gateway policy`: what was learned as a file that people review, and what of it applies."""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.backends import Stores
from gateway.commands.store import add_verb, answer, confirmed, kept, say
from gateway.config import Settings
from gateway.conversations.conversation import Workload
from gateway.conversations.workloads import Workloads
from gateway.core.decide import LessonQuery
from gateway.core.pattern import RETRIEVED, Lesson, content
from gateway.core.step import Action
from gateway.errors import ConfigError
from gateway.features.learning.book import APPROVED, LessonBook
from gateway.features.learning.gate import refusal
from gateway.features.learning.settings import LearningSettings
from gateway.features.learning.verdicts import steps_of
from gateway.features.policy import policy_file
from gateway.steering.evidence.failure_keys import read_action
from gateway.steering.routing_policy import begin, candidates
from gateway.stores.learning import LearnedPolicy, LessonFilter
from gateway.stores.queries import PageRequest, RunFilter, RunTrace
from gateway.stores.sql.changes import Change, pilot_of
from gateway.text.formatting import counted
from gateway.upstream.catalogue import ModelCatalogue
from gateway.upstream.deployments import DeploymentTable

LEARNED = "learned"
NONE_YET = "nothing was ever published: what is learned applies"
_REPLAYED = 100
_MOST = 100_000
_BACK = "back-"  # begins the id of a change that rolled back
_Known = list[tuple[Change, LearnedPolicy | None]]


def add_parser(commands: Any) -> None:
    """Declare the command and its verbs."""
    summary = "what was learned as a file: compile, compare, publish, roll back"
    verbs = commands.add_parser("policy", help=summary).add_subparsers(
        required=True, metavar="VERB"
    )
    verb = partial(add_verb, verbs, whole=None)
    make = verb("compile", "write what was learned as YAML", _compile)
    make.add_argument("-o", "--output", type=Path, help="file to write (default: stdout)")
    make.add_argument("--tenant", help="only what was learned from this tenant's runs")
    diff = verb("diff", "a file against what applies; exit status 1: they differ", _diff)
    against = "default: what is learned now, against what is published"
    diff.add_argument("file", nargs="?", type=Path, help=against)
    publish = verb("publish", "let exactly what a file says apply", _publish)
    publish.add_argument("file", type=Path, help="a file of `gateway policy compile`")
    publish.add_argument("--yes", action="store_true", help="do not ask")
    skip = "do not replay the last runs, for this reason"
    publish.add_argument("--without-replay", metavar="REASON", help=skip)
    earlier = "let the policy before, or what is learned, apply"
    back = add_verb(verbs, "rollback", earlier, _rollback)
    back.add_argument("--to", help=f"its digest, or `{LEARNED}` (default: the one before)")
    add_verb(verbs, "list", "policies that were published; the first line applies", _list)


class _Learned:
    """The learned state of a store, or a policy in its place, as runs would meet it."""

    def __init__(self, stores: Stores, settings: Settings, policy: LearnedPolicy | None) -> None:
        self.store = kept(stores.workloads, "this store keeps no workloads")
        self.learning = stores.learning
        self.settings = settings
        self.rules = settings.rules()
        infos = {each.model_name: each.model_info for each in settings.model_list}
        self.table = DeploymentTable(settings, os.environ)
        self.price = ModelCatalogue(self.table, infos).price
        self.workloads = Workloads(self.store)
        self.book = LessonBook(stores.learning, failed=lambda error: None)
        self.workloads.follow(policy)
        self.book.published = lambda: policy

    async def compiled(self, tenant: str | None = None) -> LearnedPolicy:
        """The policy of what is learned."""
        await self.workloads.refresh()
        wanted = LessonFilter(tenant=tenant, statuses=RETRIEVED)
        return policy_file.compiled(
            [rate for rate in await self.store.rates() if tenant in (None, rate.tenant)],
            await self.learning.lessons(wanted, limit=_MOST),
            lambda rate: self.model(rate.tenant, rate.client, rate.requested, rate.workload),
        )

    def model(self, tenant: str, client: str, requested: str, key: str) -> str:
        """The model on which runs of a workload begin, without exploration."""
        workload = Workload(tenant=tenant, client=client, requested=requested, key=key)
        models = candidates(self.rules.routes, requested)
        prices = {model: price for model in models if (price := self.price(model)) is not None}
        rates = self.workloads.rates(workload, "", prices)
        regret = self.rules.routing.regret
        return begin(rates, models, requested, regret=regret, explore=0.0).model

    async def decided(self, trace: RunTrace) -> list[tuple[str, Any]]:
        """The decisions about a stored run: its route, and the lessons at each step."""
        run = trace.run
        names = (run.tenant, run.agent.partition("/")[0].lower(), run.model_requested)
        key = await self.store.workload_of(run.id)
        shelf = await self.book.shelf(run.tenant)
        first = trace.steps[0].content
        opening = first.messages if first else ()

        def lessons(*keys: str, actions: tuple[Action, ...] = ()) -> tuple[str, frozenset[str]]:
            query = LessonQuery(keys=keys, exclude=frozenset(), actions=actions)
            fit = shelf.fitting(replace(query, opening=lambda: opening))
            return "lessons", frozenset(match.pattern.pattern_id for match in fit)

        found: list[tuple[str, Any]] = [("route", self.model(*names, key)), lessons()]
        for step in steps_of(trace):
            failures = [read_action(action).failure for action in step.actions]
            keys = [failure.key for failure in failures if failure is not None]
            found.append(lessons(*keys, actions=step.actions))
        return found


async def _compile(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    policy = await _Learned(stores, settings, None).compiled(args.tenant)
    text = policy_file.render(policy)
    number = len(policy_file.entries(policy))
    if args.output is None:
        sys.stdout.write(text)
        return
    args.output.write_text(text, encoding="utf-8")
    shown = {"entries": number, "digest": policy.digest}
    answer(args, shown, f"{args.output}: digest {policy.digest}, entries: {number}")


async def _published(stores: Stores) -> _Known:
    """The changes, newest first, each with its policy; None = what is learned."""
    changes = kept(stores.changes, "this store keeps no policies")
    found = await changes.newest("policy", limit=_MOST)
    return [(each, msgspec.json.decode(each.body, type=LearnedPolicy | None)) for each in found]


async def _diff(stores: Stores, settings: Settings, args: argparse.Namespace) -> int:
    published = next((policy for _, policy in await _published(stores)), None)
    learned = _Learned(stores, settings, None).compiled
    if args.file:
        other = policy_file.summed(policy_file.read(args.file)[0])
    else:
        other = await learned()
    before = published or (await learned() if args.file else other)
    lines = policy_file.changes(before, other)
    applies = f"the published policy {published.digest}" if published else "what is learned"
    answer(args, lines, "\n".join(lines) or f"no difference: {applies} applies")
    return 1 if lines else 0


async def _publish(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    policy, places = policy_file.read(args.file)
    whole = policy_file.summed(policy)
    known = await _published(stores)
    new = _Learned(stores, settings, whole)
    if faults := list(_refused(new, policy, places)):
        raise ConfigError(*faults)
    now = known[0][1] if known else None
    old = _Learned(stores, settings, now)
    for line in policy_file.changes(now or await old.compiled(), whole):
        say(line)
    if whole.digest != policy.digest:
        say(f"{args.file}: entries were removed or moved since it was compiled: now {whole.digest}")
    say(args.without_replay or await _replayed(stores, old, new))
    if settings.of(LearningSettings).trials != "on" and (whole.lessons or whole.rules):
        say("learning.trials is off: no lesson or rule is given before it is on")
    if settings.routing.policy != "learned" and whole.routes:
        say("routing.policy is not `learned`: routes have no effect before it is")
    if policy.thresholds:
        say(f"{args.file}: thresholds: no effect: nothing is decided by a fitted risk any more")
    await confirmed(args, "this will apply.")
    skipped = f"without a replay: {args.without_replay}" if args.without_replay else ""
    await _put(stores, args, known, whole, "; ".join(filter(None, (args.reason, skipped))))


def _refused(new: _Learned, policy: LearnedPolicy, places: dict[str, str]) -> Iterator[str]:
    """The entries that may not apply here, each with its place and why."""
    for route in policy.routes:
        model = route.applies.model
        requested = route.applies.requested
        why = f"model_routing does not name {model!r}: no run would begin on it"
        if new.settings.model_list and not any(each.key for each in new.table.resolve(model)):
            why = f"no deployment serves {model!r}"
        elif model in candidates(new.rules.routes, requested):
            continue
        if model != requested:
            yield f"{places[route.name]}: {route.name}: {why}"
    for each in (*policy.lessons, *policy.rules):
        texts = content(each.applies.fields)
        marks = each.applies.lesson or Lesson(key="")
        named = {word for part in texts.move.split("`")[1::2] for word in part.split()}
        known: Any = {"known": named, "approved": APPROVED in marks.applies_when}
        no = refusal(texts.move or texts.avoid, **known)
        if no := no or (refusal(texts.situation, approved=True) if texts.situation else ""):
            yield f"{places[each.name]}: {each.name}: {no}"


async def _replayed(stores: Stores, old: _Learned, new: _Learned) -> str:
    """Decisions about the last runs that would differ, in words. Raises ConfigError: no runs."""
    await old.workloads.refresh()
    page = await stores.runs.list_runs(RunFilter(), PageRequest(limit=_REPLAYED))
    runs = 0
    steps = Counter[str]()
    of_runs = Counter[str]()
    for run in page.runs if old.settings.storage.store_content else ():
        trace = await stores.runs.get_run(run.id, tenant=run.tenant)
        if trace is not None and steps_of(trace):
            both = zip(await old.decided(trace), await new.decided(trace), strict=True)
            changed = Counter(kind for (kind, was), (_, now) in both if was != now)
            runs = runs + 1
            steps = steps + changed
            of_runs.update(changed.keys())
    if not runs:
        raise ConfigError(
            "no stored run to replay, so nobody sees what the file would change: serve runs with "
            "storage.store_content, or say why it goes without: --without-replay REASON"
        )
    kinds = ("route", "lessons")
    words = ", ".join(f"{kind} in {of_runs[kind]} ({steps[kind]} decisions)" for kind in kinds)
    return f"replay of the last {counted(runs, 'run')}; would differ: {words}"


async def _put(
    stores: Stores, args: Any, known: _Known, policy: LearnedPolicy | None, why: str, back: str = ""
) -> None:
    subject = policy.digest if policy else LEARNED
    newest = known[0][0] if known else None
    named = {"kind": "policy", "subject": subject, "author": args.author, "reason": why}
    if stores.changes is None or not await stores.changes.append(newest, policy, back, **named):
        raise ConfigError("not done: another policy was published meanwhile; see `policy list`")
    pilot = pilot_of(next(iter(await stores.changes.newest("pilot", limit=1)), None))
    if pilot is not None and not pilot.over:
        say(f"{pilot.id} compares runs of before and after this, in both of its arms")
    which = f"policy {subject}" if policy else "what is learned"
    answer(args, {"applies": subject}, f"{which} applies from the next refresh on")


async def _rollback(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    known = await _published(stores)
    if not known:
        raise ConfigError(NONE_YET)
    earlier = known if args.to else known[_current(known) + 1 :]
    found = [policy for change, policy in earlier if change.subject.startswith(args.to or "")]
    if not found and args.to not in (None, LEARNED):
        raise ConfigError(f"no policy {args.to!r} was published: see `gateway policy list`")
    await _put(stores, args, known, found[0] if found else None, args.reason, back=_BACK)


def _current(known: _Known) -> int:
    """The place at which what applies was published, to which rollbacks led."""
    at = 0
    while at < len(known) and known[at][0].id.startswith(_BACK):
        same = (n for n, each in enumerate(known) if each[0].subject == known[at][0].subject)
        at = next((n for n in same if n > at), len(known))
    return at


async def _list(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    known = await kept(stores.changes, "this store keeps no policies").newest("policy", limit=_MOST)
    for change in known:
        at = time.strftime("%Y-%m-%d %H:%M", time.gmtime(change.at))
        shown = {name: getattr(change, name) for name in ("subject", "at", "author", "reason")}
        line = f"{change.subject:<12}  {at}  {change.author}  {change.reason}"
        answer(args, shown, line.rstrip())
    if not known and not args.json:
        say(NONE_YET)
