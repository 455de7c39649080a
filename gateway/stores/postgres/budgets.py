"""Accounts of budgets in PostgreSQL: each step locks its accounts, in the same order everywhere."""

# ruff: noqa: S608 - statements are put together from names of this module; values are bound

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import asyncpg
import orjson

from gateway.stores.budgets import (
    Account,
    AccountKey,
    Amounts,
    Claim,
    Reserved,
    Settlement,
    Wanted,
    decide,
    expired,
    opened,
    settled,
)
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import read_text, stored_text

_PICO = 10**12
"""Costs are stored as millionths of a millionth of a dollar: whole numbers add up exactly."""

_AMOUNTS = "usd, input_tokens, output_tokens, calls"
_ESTIMATED = ", ".join(f"estimated_{name}" for name in _AMOUNTS.split(", "))
_ESTIMATED_AFTER = ", ".join(f"{n} = excluded.{n}" for n in _ESTIMATED.split(", "))
_ESTIMATED_NONE = ", ".join(f"{n} = 0" for n in _ESTIMATED.split(", "))
_THIS = "WHERE budget = $1 AND subject = $2"
# An account may not exist yet, so its name is locked and not its row.
_LOCK = """
SELECT pg_advisory_xact_lock(key) FROM (
    SELECT DISTINCT hashtextextended(name, 1) AS key FROM unnest($1::text[]) AS name ORDER BY 1
) AS keys
"""
_FIND = f"""
SELECT tenant, {_AMOUNTS}, {_ESTIMATED}, unpriced, started_at, updated_at, limits, lifted
FROM budget_accounts {_THIS}
"""
_RESERVED = f"""
SELECT coalesce(sum(usd), 0)::bigint, coalesce(sum(input_tokens), 0)::bigint,
    coalesce(sum(output_tokens), 0)::bigint, coalesce(sum(calls), 0)::bigint
FROM budget_reservations {_THIS}
"""
_SAVE = f"""
INSERT INTO budget_accounts (budget, subject, tenant, {_AMOUNTS}, {_ESTIMATED}, unpriced,
    started_at, updated_at, limits, lifted, ends)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
    $14, $15, $16, $17)
ON CONFLICT (budget, subject) DO UPDATE SET usd = excluded.usd,
    input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
    calls = excluded.calls, {_ESTIMATED_AFTER},
    unpriced = excluded.unpriced, updated_at = excluded.updated_at,
    limits = excluded.limits, lifted = excluded.lifted
"""
_RESERVE = f"""
INSERT INTO budget_reservations (budget, subject, claim, {_AMOUNTS}, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""
_RELEASE = f"DELETE FROM budget_reservations {_THIS} AND claim = $3 RETURNING TRUE"
_EXPIRE = f"DELETE FROM budget_reservations {_THIS} AND expires_at < $3 RETURNING {_AMOUNTS}"
_LIST = """
SELECT budget, subject FROM budget_accounts
WHERE ($1::text IS NULL OR budget = $1) AND ($2::text IS NULL OR tenant = $2)
ORDER BY updated_at DESC, budget, subject LIMIT $3
"""
_RESET = f"""
UPDATE budget_accounts SET usd = 0, input_tokens = 0, output_tokens = 0, calls = 0, unpriced = 0,
    {_ESTIMATED_NONE},
    started_at = $3, updated_at = $3, limits = '{{}}', lifted = FALSE {_THIS} RETURNING TRUE
"""
_PRUNE = """
DELETE FROM budget_accounts AS a WHERE ends AND updated_at < $1 AND NOT EXISTS (
    SELECT 1 FROM budget_reservations AS r WHERE r.budget = a.budget AND r.subject = a.subject
) RETURNING TRUE
"""
_PRUNE_RESERVATIONS = "DELETE FROM budget_reservations WHERE expires_at < $1"


class PostgresBudgetStore:
    """`BudgetStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reserve(self, claim: Claim) -> Reserved:
        """See BudgetStore."""
        return await self._database.transact(partial(_reserve, claim))

    async def settle(self, settlement: Settlement) -> tuple[Account, ...]:
        """See BudgetStore."""
        return await self._database.transact(partial(_settle, settlement))

    async def accounts(self, keys: Sequence[AccountKey]) -> tuple[Account, ...]:
        """See BudgetStore."""
        return await self._database.view(partial(_read_all, tuple(keys)))

    async def list_accounts(
        self, *, budget: str | None = None, tenant: str | None = None, limit: int = 200
    ) -> tuple[Account, ...]:
        """See BudgetStore."""
        chosen = [None if name is None else stored_text(name) for name in (budget, tenant)]

        async def work(connection: asyncpg.Connection) -> tuple[Account, ...]:
            rows = await connection.fetch(_LIST, *chosen, limit)
            keys = [AccountKey(budget=read_text(b), subject=read_text(s)) for b, s in rows]
            return await _read_all(tuple(keys), connection)

        return await self._database.view(work)

    async def allow(
        self, key: AccountKey, *, at: float, limits: Mapping[str, float], lifted: bool
    ) -> Account:
        """See BudgetStore."""

        async def work(connection: asyncpg.Connection) -> Account:
            await _lock([key], connection)
            account = await _read(key, connection)
            if account is None:
                account = Account(budget=key.budget, subject=key.subject, started_at=at)
            account = replace(account, limits=dict(limits), lifted=lifted, updated_at=at)
            await _save(account, at, False, connection)
            return account

        return await self._database.transact(work)

    async def reset(self, key: AccountKey, *, at: float) -> bool:
        """See BudgetStore."""

        async def work(connection: asyncpg.Connection) -> bool:
            await _lock([key], connection)
            return bool(await connection.fetchval(_RESET, *_place(key), at))

        return await self._database.transact(work)

    async def prune(self, older_than: float) -> int:
        """See BudgetStore."""

        async def work(connection: asyncpg.Connection) -> int:
            await connection.execute(_PRUNE_RESERVATIONS, older_than)
            return len(await connection.fetch(_PRUNE, older_than))

        return await self._database.transact(work)


async def _reserve(claim: Claim, connection: asyncpg.Connection) -> Reserved:
    await _lock([wanted.key for wanted in claim.accounts], connection)
    accounts = [await _current(wanted, claim.at, connection) for wanted in claim.accounts]
    outcome = decide(accounts, claim)
    if outcome.refusals and claim.binding:
        return outcome
    amounts = _row(claim.estimate)
    for wanted, account in zip(claim.accounts, accounts, strict=True):
        await _save(account, claim.at, wanted.ends, connection)
        values = (*_place(wanted.key), stored_text(claim.id), *amounts, claim.expires_at)
        await connection.execute(_RESERVE, *values)
    return outcome


async def _settle(settlement: Settlement, connection: asyncpg.Connection) -> tuple[Account, ...]:
    await _lock([wanted.key for wanted in settlement.claim.accounts], connection)
    after = []
    for wanted in settlement.claim.accounts:
        claim = stored_text(settlement.claim.id)
        found = bool(await connection.fetchval(_RELEASE, *_place(wanted.key), claim))
        known = await _read(wanted.key, connection)
        account = settled(known or opened(wanted, settlement.claim.at), settlement, found=found)
        await _save(account, settlement.at, wanted.ends, connection)
        after.append(account)
    return tuple(after)


async def _lock(keys: Sequence[AccountKey], connection: asyncpg.Connection) -> None:
    await connection.execute(_LOCK, ["\n".join(_place(key)) for key in keys])


async def _current(wanted: Wanted, at: float, connection: asyncpg.Connection) -> Account:
    """The account, with reservations whose gateway has not ended them counted as spent."""
    lost = await connection.fetch(_EXPIRE, *_place(wanted.key), at)
    account = await _read(wanted.key, connection)
    if account is None:
        return opened(wanted, at)
    for row in lost:
        account = expired(account, _amounts(row))
    if lost:
        await _save(account, at, wanted.ends, connection)
    return account


async def _read_all(
    keys: tuple[AccountKey, ...], connection: asyncpg.Connection
) -> tuple[Account, ...]:
    found = [await _read(key, connection) for key in keys]
    return tuple(account for account in found if account is not None)


async def _read(key: AccountKey, connection: asyncpg.Connection) -> Account | None:
    row = await connection.fetchrow(_FIND, *_place(key))
    if row is None:
        return None
    tenant, *amounts, unpriced, started_at, updated_at, limits, lifted = row
    return Account(
        budget=key.budget,
        subject=key.subject,
        tenant=read_text(tenant),
        spent=_amounts(amounts[:4]),
        reserved=_amounts(await connection.fetchrow(_RESERVED, *_place(key))),
        unpriced=unpriced,
        estimated=_amounts(amounts[4:]),
        started_at=started_at,
        updated_at=updated_at,
        limits=orjson.loads(limits),
        lifted=lifted,
    )


async def _save(account: Account, at: float, ends: bool, connection: asyncpg.Connection) -> None:
    times = (account.started_at, max(at, account.updated_at))
    kept = (orjson.dumps(dict(account.limits)).decode(), account.lifted, ends)
    await connection.execute(
        _SAVE,
        *(*_place(account.key), stored_text(account.tenant)),
        *(*_row(account.spent), *_row(account.estimated), account.unpriced, *times, *kept),
    )


def _place(key: AccountKey) -> tuple[str, str]:
    return stored_text(key.budget), stored_text(key.subject)


def _row(amounts: Amounts) -> tuple[int, ...]:
    counts = (amounts.input_tokens, amounts.output_tokens, amounts.calls)
    return (round(amounts.usd * _PICO), *counts)


def _amounts(row: Sequence[Any]) -> Amounts:
    usd, input_tokens, output_tokens, calls = row
    return Amounts(
        usd=usd / _PICO, input_tokens=input_tokens, output_tokens=output_tokens, calls=calls
    )
