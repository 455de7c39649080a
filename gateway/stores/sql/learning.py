"""Lessons, which are rows of the patterns table that have an origin, and their evidence; outcomes,
decisions and jobs of learning."""

from collections.abc import Sequence
from dataclasses import asdict
from secrets import token_hex
from typing import NamedTuple

import orjson

from gateway.core.pattern import Pattern, Status, content
from gateway.stores.codec import DECISION_COLUMNS, content_of, names
from gateway.stores.learning import (
    AGAINST,
    MARK,
    NO_SUPPORT,
    DecisionRow,
    EvidenceRow,
    JobLimits,
    Learned,
    LessonFilter,
    NearOutcome,
    OutcomeRow,
    Posterior,
    ReaderJob,
    SettledDecision,
    StoredLesson,
)
from gateway.stores.protocols import PATTERNS
from gateway.stores.records import StepContent
from gateway.stores.sql.engine import (
    Connection,
    Engine,
    Row,
    assigned,
    columns,
    conditions,
    excluded,
    insert,
    record_of,
    row_of,
)
from gateway.stores.sql.patterns import SELECT_LESSONS, stored_lesson, write_patterns
from gateway.values import FieldDict, by_name

FORGOTTEN = "[forgotten]"  # in place of texts that only a forgotten run taught
_EVIDENCE = names(EvidenceRow)
_evidence = record_of(EvidenceRow, _EVIDENCE)
_INSERT_EVIDENCE = f"""
{insert("pattern_evidence", _EVIDENCE)}
ON CONFLICT DO NOTHING RETURNING TRUE
"""
_KNOWN = """
SELECT pk FROM patterns WHERE pattern_id = :pattern_id AND tenant IN ('', :tenant)
AND origin <> '' ORDER BY tenant LIMIT 1
"""
_CONFIRM = """
UPDATE patterns SET last_confirmed_at = :at WHERE pk = :pk AND last_confirmed_at < :at
"""
_LESSON = f"""
{SELECT_LESSONS} AND p.pattern_id = :pattern_id
    AND (CAST(:tenant AS TEXT) IS NULL OR p.tenant IN ('', :tenant))
ORDER BY p.tenant DESC LIMIT 1
"""
_OWN = "WHERE tenant = :tenant AND pattern_id = :pattern_id"
_MOVE = f"""
UPDATE patterns SET status = :status, reason = :reason, updated_at = :at {_OWN}
AND origin <> '' AND status <> :status RETURNING TRUE
"""
_SUPPORT = f"""
SELECT {columns(_EVIDENCE)} FROM pattern_evidence WHERE pattern_id = :pattern_id
AND (CAST(:tenant AS TEXT) = '' OR tenant = :tenant)
ORDER BY at DESC, run_id, step_index LIMIT :limit
"""
_MARKS = f"""
SELECT {columns(_EVIDENCE)} FROM pattern_evidence WHERE kind = '{MARK}'
AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant) ORDER BY at, run_id, step_index
"""
_UNMARK = f"""
DELETE FROM pattern_evidence {_OWN} AND kind = '{MARK}'
AND run_id = :run_id AND step_index = :step_index RETURNING TRUE
"""
_OF_RUN = "run_id = :run_id AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)"
_FORGOTTEN = "SELECT run_id FROM forgotten_runs WHERE tenant = :tenant"
_FORGET_LESSON = """
INSERT INTO operator_changes (id, kind, subject, tenant, at, author, reason, body)
VALUES (:id, 'forgotten', :name, '', :at, '', '', '{}')
"""
_IS_FORGOTTEN = "SELECT TRUE FROM forgotten_runs WHERE run_id = :run_id AND tenant = :tenant"
_KNOWN_RUN = f"""
INSERT INTO forgotten_runs (run_id, tenant, at)
SELECT :run_id, tenant, CAST(:at AS DOUBLE PRECISION) FROM (
    SELECT tenant FROM runs WHERE {_OF_RUN.replace("run_id =", "id =")}
    UNION SELECT tenant FROM pattern_evidence WHERE {_OF_RUN}
    UNION SELECT tenant FROM forgotten_runs WHERE {_OF_RUN}
) AS known WHERE TRUE
ON CONFLICT (run_id, tenant) DO UPDATE SET at = forgotten_runs.at RETURNING TRUE
"""
_GIVEN = """injections AS i JOIN runs AS r ON r.pk = i.run_pk
WHERE i.pattern_id = :pattern_id AND (CAST(:tenant AS TEXT) = '' OR r.tenant = :tenant)"""
_TEXTS = f"SELECT DISTINCT i.text FROM {_GIVEN}"
_RUNS = f"run_pk IN (SELECT i.run_pk FROM {_GIVEN})"
_MASK_GIVEN = (
    f"UPDATE injections SET text = '{FORGOTTEN}' WHERE pattern_id = :pattern_id AND {_RUNS}"
)
_STATES = f"SELECT pk, state FROM conversations WHERE pk IN (SELECT conversation_pk FROM {_GIVEN})"
_MASK_STATE = "UPDATE conversations SET state = :state WHERE pk = :pk"
_REMOVE_RAW = f"DELETE FROM raw_calls WHERE {_RUNS}"
# Calls that wait for their answers and have a text that they gave, or their conversation's state,
# in which nothing can be masked. The answers stay, their calls are not recorded.
_REMOVE_WAITING = f"""
UPDATE answers SET call = '' WHERE (CAST(:tenant AS TEXT) = '' OR answers.tenant = :tenant)
AND (call LIKE '%' || CAST(:pattern_id AS TEXT) || '%' OR EXISTS (
    SELECT 1 FROM conversations AS c WHERE call LIKE '%' || c.id || '%'
    AND c.pk IN (SELECT r.conversation_pk FROM {_GIVEN})
))"""
_TOUCHED = f"SELECT DISTINCT tenant, pattern_id FROM pattern_evidence WHERE {_OF_RUN}"
_OWNERS = """
SELECT DISTINCT tenant FROM pattern_evidence
WHERE pattern_id = :pattern_id AND kind <> 'failed_again'
"""
_REMOVE = f"DELETE FROM patterns {_OWN} AND origin <> '' AND origin <> 'written' RETURNING fields"
# Changes of lessons take their turns with each other and with those of patterns.
_TABLE = "patterns"

_VERDICTS = 2
_OUTCOME = names(OutcomeRow)
_verdict = record_of(OutcomeRow, _OUTCOME)
_POSTERIOR = names(Posterior)
_JOB = names(ReaderJob)
_DECISION = DECISION_COLUMNS
_NEAR = ("recurred", "calls_to_success", "steps_left")
_NEWEST = """
SELECT verdict, score, comment FROM outcomes
WHERE run_id = :run_id AND source = :source AND metric = :metric ORDER BY pk DESC LIMIT 1
"""
_ADD_OUTCOME = insert("outcomes", _OUTCOME)
_OUTCOMES = f"SELECT {columns(_OUTCOME)} FROM outcomes WHERE {_OF_RUN} ORDER BY pk"
_DECISIONS = f"""
SELECT {columns(_DECISION)}, tenant, at, {columns(_NEAR)} FROM pattern_decisions
WHERE owner = :owner AND pattern_id = :pattern_id
    AND (CAST(:version AS BIGINT) IS NULL OR version = :version)
    AND NOT EXISTS (SELECT 1 FROM forgotten_runs AS f
        WHERE f.run_id = pattern_decisions.run_id AND f.tenant = pattern_decisions.tenant)
ORDER BY at, run_id, step_index LIMIT :limit
"""
_VERDICTS_OF = f"""
SELECT {columns(_OUTCOME)} FROM outcomes WHERE run_id IN (
    SELECT run_id FROM pattern_decisions
    WHERE owner = :owner AND pattern_id = :pattern_id AND version = :version
) ORDER BY pk
"""
_OPEN = f"""
SELECT {columns(_DECISION)} FROM pattern_decisions WHERE run_id = :run_id
    AND (recurred IS NULL OR CAST(:settled AS BIGINT) = 1) ORDER BY step_index, pattern_id
"""
_SETTLE = f"""
UPDATE pattern_decisions SET {assigned(_NEAR)}
WHERE run_id = :run_id AND step_index = :step_index AND pattern_id = :pattern_id
    AND recurred IS NULL RETURNING TRUE
"""
_RATED = ("owner", "pattern_id", "version", *_POSTERIOR, "updated_at")
_PUT_POSTERIOR = f"""
{insert("pattern_posteriors", _RATED)}
ON CONFLICT (owner, pattern_id, version) DO UPDATE SET {excluded(_RATED[3:])}
"""
_ENQUEUE = f"""
{insert("jobs", (*_JOB, "claimed_at"))}
ON CONFLICT (kind, key) DO NOTHING RETURNING TRUE
"""
_GIVE_UP = """
UPDATE jobs SET state = 'failed', done_at = :now, error = 'abandoned too often'
WHERE kind = :kind AND state = 'waiting' AND lease_until <= :now AND attempts >= :most_attempts
"""
_CLAIM = f"""
UPDATE jobs SET attempts = attempts + 1, lease_until = :until, claimed_at = :now,
tokens = tokens + :reserve_tokens, cost_usd = cost_usd + :reserve_usd WHERE pk = (
    SELECT pk FROM jobs AS j WHERE kind = :kind AND state = 'waiting' AND lease_until <= :now
    AND NOT EXISTS (
        SELECT 1 FROM jobs AS o WHERE o.kind = :kind AND o.tenant = j.tenant
        AND o.state = 'waiting' AND o.lease_until > :now
    )
    AND NOT EXISTS (
        SELECT count(*) FROM jobs AS s WHERE s.kind = :kind AND s.tenant = j.tenant
        AND s.claimed_at >= :since
        HAVING sum(s.tokens) >= CAST(:tokens AS DOUBLE PRECISION) OR sum(s.cost_usd) >= :cost_usd
    )
    ORDER BY pk LIMIT 1
) RETURNING {columns(_JOB)}
"""
_HELD = "kind = :kind AND key = :key AND lease_until = :lease_until AND state = 'waiting'"
_FINISH = f"""
UPDATE jobs SET {assigned(("state", "done_at", "tokens", "cost_usd", "error"))}
WHERE {_HELD} RETURNING TRUE
"""
_GIVE_BACK = f"""
UPDATE jobs SET lease_until = :until, {assigned(("attempts", "tokens", "cost_usd"))}
WHERE {_HELD} RETURNING TRUE
"""
_OF_TENANT = "kind = :kind AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)"
_SPENT = f"""
SELECT CAST(coalesce(sum(tokens), 0) AS BIGINT), coalesce(sum(cost_usd), 0.0) FROM jobs
WHERE {_OF_TENANT} AND claimed_at >= :since
"""
_ONE_JOB = f"SELECT {columns(_JOB)} FROM jobs WHERE kind = :kind AND key = :key"
_COUNT_JOBS = f"SELECT state, count(*) FROM jobs WHERE {_OF_TENANT} GROUP BY state"


class SaidRow(NamedTuple):
    """A step with messages or acts of a person."""

    run_pk: int  # with `step_index` the place to read on from
    step_index: int  # step of the run, 0 for its first call
    conversation_id: str  # the root of its tree
    at: float  # epoch seconds of the step
    tenant: str  # owner of the run
    author: str  # the run's tag `author`, else the name of its key; "" without either
    content: StepContent  # its texts


class LearningStore:
    """Outcomes, lessons, decisions and jobs. Every method may raise StoreError. `tenant` None,
    where it is allowed, means every tenant."""

    def __init__(self, engine: Engine):
        self._engine = engine
        run = engine.forms.member("payload", "run")
        self._forget_jobs = f"""
            DELETE FROM jobs WHERE {run} = :run_id
                AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
        """
        texts = [engine.forms.member("s.content", name) for name in ("messages", "human")]
        author = engine.forms.member("r.tags", "author")
        self._said = f"""
            SELECT s.run_pk, s.step_index, c.id, s.at, r.tenant, coalesce({author}, r.key_name),
                s.content FROM steps AS s
            JOIN runs AS r ON r.pk = s.run_pk JOIN conversations AS c ON c.pk = r.conversation_pk
            WHERE c.root_id IS NULL AND (CAST(:tenant AS TEXT) IS NULL OR r.tenant = :tenant)
            AND (s.run_pk, s.step_index) > (:run_pk, :step_index)
            AND ({" OR ".join([f"coalesce({text}, '[]') <> '[]'" for text in texts])})
            AND NOT EXISTS (SELECT 1 FROM forgotten_runs AS f
                WHERE f.run_id = r.id AND f.tenant = r.tenant)
            ORDER BY s.run_pk, s.step_index LIMIT :limit
        """
        scope = engine.forms.member("applies_when", "scope")
        self._mask_source = f"""
            UPDATE patterns SET source_trace_id = NULL,
                applies_when = coalesce('{{"scope":"' || {scope} || '"}}', '{{}}')
            WHERE pattern_id = :pattern_id AND origin <> ''
                AND substr(source_trace_id, 1, length(:source)) = :source
        """  # the digest of its project is all that stays
        self._mask_steps = f"""
            UPDATE steps SET content = replace(content, :text, '{FORGOTTEN}')
            WHERE {engine.forms.position("content", "text")} > 0 AND {_RUNS}
        """

    async def learn(self, entries: Sequence[tuple[Pattern, Sequence[EvidenceRow]]]) -> Learned:
        """Store lessons with their evidence, all or none. A known lesson only gets the evidence
        that is new, and is confirmed at its time. Evidence against an unknown one waits for it.
        Raises: ValueError for a pattern that is no lesson."""
        if any(pattern.lesson is None or not pattern.pattern_id for pattern, _ in entries):
            raise ValueError("pattern: a lesson has an id, and says what it was learned from")

        async def work(connection: Connection) -> Learned:
            await connection.take_turn(_TABLE)
            kept = [await _learn(pattern, evidence, connection) for pattern, evidence in entries]
            return Learned(lessons=sum(new for new, _ in kept), evidence=sum(n for _, n in kept))

        learned = await self._engine.transact(work)
        await self._report(learned.lessons)
        return learned

    async def lessons(self, wanted: LessonFilter, *, limit: int = 1000) -> list[StoredLesson]:
        """Lessons, last changed first."""
        bound = {"limit": limit}
        sql = f"""
            {SELECT_LESSONS} AND {self._where(wanted, bound)}
            ORDER BY p.updated_at DESC, p.pk DESC LIMIT :limit
        """
        return await self._engine.made(stored_lesson, sql, **bound)

    async def lesson(self, tenant: str | None, pattern_id: str) -> StoredLesson | None:
        """The tenant's own or the shared lesson of that id."""
        return await self._engine.first(
            stored_lesson, _LESSON, pattern_id=pattern_id, tenant=tenant
        )

    async def move(
        self, tenant: str, pattern_id: str, status: Status, *, reason: str, at: float
    ) -> bool:
        """Change the status of the lesson of exactly this owner; False when it has that status."""
        moved = await self._engine.write(
            _MOVE, tenant=tenant, pattern_id=pattern_id, status=status.value, reason=reason, at=at
        )
        await self._report(len(moved))
        return bool(moved)

    async def evidence(self, tenant: str, pattern_id: str, limit: int = 200) -> list[EvidenceRow]:
        """The evidence for the lesson of exactly this owner, newest first."""
        return await self._engine.made(
            _evidence, _SUPPORT, tenant=tenant, pattern_id=pattern_id, limit=limit
        )

    async def marks(self, tenant: str | None) -> list[EvidenceRow]:
        """The calls at which people want to be reminded of rules, oldest first."""
        return await self._engine.made(_evidence, _MARKS, tenant=tenant)

    async def said(self, tenant: str | None, after: tuple[int, int], limit: int) -> list[SaidRow]:
        """The steps with messages or acts of people, sub-agents and forks left out, in the order
        in which their runs were stored. `after`: `run_pk` and `step_index` of the last known one;
        both -1 for none."""
        run_pk, step_index = after
        found = await self._engine.fetch(
            self._said, tenant=tenant, limit=limit, run_pk=run_pk, step_index=step_index
        )
        return [SaidRow._make([*row[:-1], content_of(row[-1]) or StepContent()]) for row in found]

    async def unmark(self, tenant: str, pattern_id: str, run_id: str, step_index: int) -> bool:
        """Take back a mark; False if there is none."""
        gone = await self._engine.write(
            _UNMARK, tenant=tenant, pattern_id=pattern_id, run_id=run_id, step_index=step_index
        )
        return bool(gone)

    async def forget(self, tenant: str | None, run_id: str, at: float) -> list[str] | None:
        """Remove what was learned from a run, its jobs in the reader, and the lessons that no
        other run supports. Returns the ids of the removed lessons, None for an unknown run. From
        then on nothing is learned from the run, and `decisions` leaves it out. Texts of removed
        lessons are masked where other runs were given them, and remaining lessons hold no words
        of the run."""
        of_run = {"run_id": run_id, "tenant": tenant}

        async def work(connection: Connection) -> list[str] | None:
            await connection.take_turn(_TABLE)
            if not await connection.fetch(_KNOWN_RUN, **of_run, at=at):
                return None
            touched = await connection.fetch(_TOUCHED, **of_run)
            for table in ("pattern_evidence", "outcomes", "pattern_decisions"):
                await connection.fetch(f"DELETE FROM {table} WHERE {_OF_RUN}", **of_run)
            await connection.fetch(self._forget_jobs, **of_run)
            gone = []
            for owner, name in touched:
                for whose, fields in await _remove(owner, name, connection):
                    move = content(orjson.loads(fields)).move
                    await self._mask(connection, move, tenant=whose, pattern_id=name)
                    gone.append(name)
                    # The audit log names what went.
                    await connection.fetch(_FORGET_LESSON, id=token_hex(8), name=name, at=at)
                await connection.fetch(self._mask_source, pattern_id=name, source=f"{run_id}#")
            return gone

        gone = await self._engine.transact(work)
        await self._report(len(gone or ()))
        return gone

    async def _mask(self, connection: Connection, move: str, **which: str) -> None:
        """Mask the texts of a lesson that is gone where runs were given it: in their logs, steps
        and conversations. Raw calls, which may hold a text in pieces, and calls that wait go."""
        rows = await connection.fetch(_TEXTS, **which)
        texts = sorted({move, *(text for (text,) in rows)} - {""}, key=len, reverse=True)
        quoted = [orjson.dumps(text).decode()[1:-1] for text in texts]
        for text in quoted:
            await connection.fetch(self._mask_steps, **which, text=text)
        for pk, state in await connection.fetch(_STATES, **which):
            masked = bytes(state)
            for text in quoted:
                masked = masked.replace(text.encode(), FORGOTTEN.encode())
            if masked != state:
                await connection.fetch(_MASK_STATE, pk=pk, state=masked)
        for statement in (_REMOVE_RAW, _REMOVE_WAITING, _MASK_GIVEN):
            await connection.fetch(statement, **which)

    async def forgotten(self, tenant: str) -> frozenset[str]:
        """The ids of the tenant's forgotten runs."""
        rows = await self._engine.fetch(_FORGOTTEN, tenant=tenant)
        return frozenset(run_id for (run_id,) in rows)

    async def _report(self, changed: int) -> None:
        """Notify the other gateways, which keep lessons in memory, if any has changed."""
        if changed:
            await self._engine.changed(PATTERNS)

    def _where(self, wanted: LessonFilter, bound: FieldDict) -> str:
        forms = self._engine.forms
        statuses = [str(status) for status in wanted.statuses] or None
        chosen = {
            "tenant": ("p.tenant IN ('', :tenant)", wanted.tenant),
            "tier": ("p.tier = :tier", wanted.tier.value if wanted.tier else None),
            "key_prefix": (f"{forms.position('p.key', 'key_prefix')} = 1", wanted.key_prefix),
            "since": ("p.updated_at >= :since", wanted.since),
            "statuses": (forms.among("p.status", "statuses", "text"), statuses),
        }
        return conditions(chosen, bound)

    async def add_outcome(self, outcome: OutcomeRow) -> bool:
        """Store a verdict; False when the newest of its source and metric says the same."""
        row = row_of(outcome, _OUTCOME)

        async def work(connection: Connection) -> bool:
            # A verdict may be the run's first, so the run's id is locked and not a row.
            await connection.lock([outcome.run_id], _VERDICTS)
            newest = await connection.row(_NEWEST, **row)
            same = [outcome.verdict, outcome.score, outcome.comment]
            if newest is not None and list(newest) == same:
                return False
            await connection.fetch(_ADD_OUTCOME, **row)
            return True

        return await self._engine.transact(work)

    async def outcomes(self, tenant: str | None, run_id: str) -> list[OutcomeRow]:
        """The verdicts on a run, oldest first."""
        return await self._engine.made(_verdict, _OUTCOMES, run_id=run_id, tenant=tenant)

    async def decisions(
        self, owner: str, pattern_id: str, version: int | None = None, *, limit: int = 10_000
    ) -> list[SettledDecision]:
        """The decisions about a lesson in every run, oldest first."""
        return await self._engine.made(
            _settled, _DECISIONS, owner=owner, pattern_id=pattern_id, version=version, limit=limit
        )

    async def verdicts(self, owner: str, pattern_id: str, version: int) -> list[OutcomeRow]:
        """The verdicts on the runs of a lesson's decisions, oldest first."""
        return await self._engine.made(
            _verdict, _VERDICTS_OF, owner=owner, pattern_id=pattern_id, version=version
        )

    async def open_decisions(self, run_id: str, *, settled: bool = False) -> list[DecisionRow]:
        """The decisions of a run whose near outcome is not known yet, in step order; with
        `settled` all of them."""
        return await self._engine.made(_decision, _OPEN, run_id=run_id, settled=int(settled))

    async def settle(self, outcomes: Sequence[NearOutcome]) -> int:
        """Fill in near outcomes; one that is known already stays. Returns how many were new."""
        # In one order in every gateway, so that no two wait for each other.
        order = sorted(outcomes, key=lambda near: (near.run_id, near.step_index, near.pattern_id))

        async def work(connection: Connection) -> int:
            rows = [await connection.fetch(_SETTLE, **asdict(near)) for near in order]
            return sum(map(len, rows))

        return await self._engine.transact(work)

    async def put_posterior(
        self, owner: str, pattern_id: str, version: int, posterior: Posterior, at: float
    ) -> None:
        """Store what the decisions come to, in place of the earlier one."""
        which = {"owner": owner, "pattern_id": pattern_id, "version": version, "updated_at": at}
        await self._engine.write(_PUT_POSTERIOR, **which, **row_of(posterior, _POSTERIOR))
        await self._engine.changed(PATTERNS)  # the share of occasions on which it is given

    async def enqueue(self, job: ReaderJob) -> bool:
        """Add a job; False when one of its kind and key exists. One with a lease was claimed when
        it was created."""
        payload = orjson.dumps(dict(job.payload)).decode()
        claimed_at = min(job.created_at, job.lease_until)
        row = row_of(job, _JOB) | {"payload": payload, "claimed_at": claimed_at}
        return bool(await self._engine.write(_ENQUEUE, **row))

    async def claim(
        self, kind: str, *, now: float, lease_s: float, most_attempts: int, allowance: JobLimits
    ) -> ReaderJob | None:
        """The oldest waiting job that may be done, held for `lease_s` seconds. One job of a tenant
        is held at a time, so that its allowance is exceeded by one job at most. A job whose lease
        ended can be claimed again, `most_attempts` times in all; then it is `failed`."""
        when = {"kind": kind, "now": now, "until": now + lease_s}

        async def work(connection: Connection) -> Row | None:
            # Whether a tenant may have one more depends on those of the others.
            await connection.take_turn("jobs")
            await connection.fetch(_GIVE_UP, **when, most_attempts=most_attempts)
            return await connection.row(_CLAIM, **when, **asdict(allowance))

        row = await self._engine.transact(work)
        if row is not None:
            return _job(row)
        return None

    async def finish(self, job: ReaderJob, *, now: float, error: str = "") -> bool:
        """The job is done, or with `error` has failed; `job.tokens` and `job.cost_usd` are kept.
        False, with nothing changed, when somebody else has claimed it since."""
        result = {"state": "failed" if error else "done", "done_at": now, "error": error}
        return bool(await self._engine.write(_FINISH, **(row_of(job, _JOB) | result)))

    async def give_back(self, job: ReaderJob, until: float) -> bool:
        """The job waits until then, as `job` is now; False as of `finish`."""
        return bool(await self._engine.write(_GIVE_BACK, **row_of(job, _JOB), until=until))

    async def spent(self, kind: str, tenant: str | None, since: float) -> tuple[int, float]:
        """Tokens and USD of jobs that were claimed since then, unfinished included."""
        ((tokens, usd),) = await self._engine.fetch(_SPENT, kind=kind, tenant=tenant, since=since)
        return int(tokens), float(usd)

    async def job(self, kind: str, key: str) -> ReaderJob | None:
        """The job of this kind and key."""
        return await self._engine.first(_job, _ONE_JOB, kind=kind, key=key)

    async def count_jobs(self, kind: str, tenant: str | None = None) -> dict[str, int]:
        """Number of jobs in each state."""
        rows = await self._engine.fetch(_COUNT_JOBS, kind=kind, tenant=tenant)
        return {state: int(number) for state, number in rows}


async def _learn(
    pattern: Pattern, evidence: Sequence[EvidenceRow], connection: Connection
) -> tuple[bool, int]:
    known = await connection.value(_KNOWN, pattern_id=pattern.pattern_id, tenant=pattern.tenant)
    # A gateway may have read the run before it was forgotten.
    kept = [
        row
        for row in evidence
        if not await connection.row(_IS_FORGOTTEN, run_id=row.run_id, tenant=row.tenant)
    ]
    if evidence and not kept:
        return False, 0
    speaks = not evidence or any(row.kind != AGAINST for row in kept)
    if known is None and speaks:
        await write_patterns([pattern], connection)
    new = [
        row for row in kept if await connection.fetch(_INSERT_EVIDENCE, **row_of(row, _EVIDENCE))
    ]
    confirms = [row.at for row in new if row.kind not in NO_SUPPORT]
    if confirms and known is not None:
        await connection.fetch(_CONFIRM, at=max(confirms), pk=known)
    return known is None and speaks, len(new)


async def _remove(owner: str, pattern_id: str, connection: Connection) -> list[tuple[str, str]]:
    """Remove a lesson without evidence: the owner and fields of each row that is gone."""
    left = {name for (name,) in await connection.fetch(_OWNERS, pattern_id=pattern_id)}
    # A shared lesson is supported by the evidence of all tenants.
    if owner in left:
        return []
    owners = (owner,) if left else (owner, "")
    return [
        (each, fields)
        for each in owners
        for (fields,) in await connection.fetch(_REMOVE, tenant=each, pattern_id=pattern_id)
    ]


def _job(row: Row) -> ReaderJob:
    found = by_name(_JOB, row)
    found["payload"] = orjson.loads(found["payload"])
    return ReaderJob(**found)


def _decision(row: Row) -> DecisionRow:
    found = by_name(_DECISION, row)
    found["given"] = bool(found["given"])
    return DecisionRow(**found)


def _settled(row: Row) -> SettledDecision:
    found = by_name(("tenant", "at", *_NEAR), row[len(_DECISION) :])
    found["recurred"] = None if found["recurred"] is None else bool(found["recurred"])
    return SettledDecision(decision=_decision(row[: len(_DECISION)]), **found)
