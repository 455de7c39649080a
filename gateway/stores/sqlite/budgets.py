"""Accounts of budgets in SQLite: the write transaction makes each step atomic, for all gateways."""

# ruff: noqa: S608 - statements are put together from names of this module; values are bound

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import apsw
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
from gateway.stores.sqlite.database import Database

_PICO = 10**12
"""Costs are stored as millionths of a millionth of a dollar: whole numbers add up exactly."""

_AMOUNTS = "usd, input_tokens, output_tokens, calls"
_ESTIMATED = ", ".join(f"estimated_{name}" for name in _AMOUNTS.split(", "))
_ESTIMATED_AFTER = ", ".join(f"{n} = excluded.{n}" for n in _ESTIMATED.split(", "))
_ESTIMATED_NONE = ", ".join(f"{n} = 0" for n in _ESTIMATED.split(", "))
_THIS = "WHERE budget = ? AND subject = ?"
_FIND = f"""
SELECT tenant, {_AMOUNTS}, {_ESTIMATED}, unpriced, started_at, updated_at, limits, lifted
FROM budget_accounts {_THIS}
"""
_RESERVED = f"""
SELECT coalesce(sum(usd), 0), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0),
    coalesce(sum(calls), 0)
FROM budget_reservations {_THIS}
"""
_SAVE = f"""
INSERT INTO budget_accounts (budget, subject, tenant, {_AMOUNTS}, {_ESTIMATED}, unpriced,
    started_at, updated_at, limits, lifted, ends)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (budget, subject) DO UPDATE SET usd = excluded.usd,
    input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
    calls = excluded.calls, {_ESTIMATED_AFTER},
    unpriced = excluded.unpriced, updated_at = excluded.updated_at,
    limits = excluded.limits, lifted = excluded.lifted
"""
_RESERVE = f"""
INSERT INTO budget_reservations (budget, subject, claim, {_AMOUNTS}, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_RELEASE = f"DELETE FROM budget_reservations {_THIS} AND claim = ?"
_EXPIRE = f"DELETE FROM budget_reservations {_THIS} AND expires_at < ? RETURNING {_AMOUNTS}"
_LIST = """
SELECT budget, subject FROM budget_accounts
WHERE (?1 IS NULL OR budget = ?1) AND (?2 IS NULL OR tenant = ?2)
ORDER BY updated_at DESC, budget, subject LIMIT ?3
"""
_RESET = f"""
UPDATE budget_accounts SET usd = 0, input_tokens = 0, output_tokens = 0, calls = 0, unpriced = 0,
    {_ESTIMATED_NONE},
    started_at = ?, updated_at = ?, limits = '{{}}', lifted = FALSE {_THIS}
"""
_PRUNE = """
DELETE FROM budget_accounts WHERE ends AND updated_at < ?1 AND NOT EXISTS (
    SELECT 1 FROM budget_reservations AS r
    WHERE r.budget = budget_accounts.budget AND r.subject = budget_accounts.subject
)
"""
_PRUNE_RESERVATIONS = "DELETE FROM budget_reservations WHERE expires_at < ?"


class SQLiteBudgetStore:
    """`BudgetStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reserve(self, claim: Claim) -> Reserved:
        """See BudgetStore."""
        return await self._database.write(partial(_reserve, claim))

    async def settle(self, settlement: Settlement) -> tuple[Account, ...]:
        """See BudgetStore."""
        return await self._database.write(partial(_settle, settlement))

    async def accounts(self, keys: Sequence[AccountKey]) -> tuple[Account, ...]:
        """See BudgetStore."""
        return await self._database.read(partial(_read_all, tuple(keys)))

    async def list_accounts(
        self, *, budget: str | None = None, tenant: str | None = None, limit: int = 200
    ) -> tuple[Account, ...]:
        """See BudgetStore."""
        return await self._database.read(partial(_list, budget, tenant, limit))

    async def allow(
        self, key: AccountKey, *, at: float, limits: Mapping[str, float], lifted: bool
    ) -> Account:
        """See BudgetStore."""
        return await self._database.write(partial(_allow, key, at, dict(limits), lifted))

    async def reset(self, key: AccountKey, *, at: float) -> bool:
        """See BudgetStore."""
        return await self._database.write(partial(_reset, key, at))

    async def prune(self, older_than: float) -> int:
        """See BudgetStore."""

        def work(connection: apsw.Connection) -> int:
            connection.execute(_PRUNE_RESERVATIONS, (older_than,))
            connection.execute(_PRUNE, (older_than,))
            return connection.changes()

        return await self._database.write(work)


def _reserve(claim: Claim, connection: apsw.Connection) -> Reserved:
    accounts = [_current(wanted, claim.at, connection) for wanted in claim.accounts]
    outcome = decide(accounts, claim)
    if outcome.refusals and claim.binding:
        return outcome
    amounts = _row(claim.estimate)
    for wanted, account in zip(claim.accounts, accounts, strict=True):
        _save(account, claim.at, wanted.ends, connection)
        place = (wanted.key.budget, wanted.key.subject)
        connection.execute(_RESERVE, (*place, claim.id, *amounts, claim.expires_at))
    return outcome


def _settle(settlement: Settlement, connection: apsw.Connection) -> tuple[Account, ...]:
    after = []
    for wanted in settlement.claim.accounts:
        place = (wanted.key.budget, wanted.key.subject)
        connection.execute(_RELEASE, (*place, settlement.claim.id))
        found = connection.changes() > 0
        account = _read(wanted.key, connection) or opened(wanted, settlement.claim.at)
        account = settled(account, settlement, found=found)
        _save(account, settlement.at, wanted.ends, connection)
        after.append(account)
    return tuple(after)


def _current(wanted: Wanted, at: float, connection: apsw.Connection) -> Account:
    """The account, with reservations whose gateway has not ended them counted as spent."""
    place = (wanted.key.budget, wanted.key.subject)
    lost: list[Any] = connection.execute(_EXPIRE, (*place, at)).fetchall()
    account = _read(wanted.key, connection)
    if account is None:
        return opened(wanted, at)
    for row in lost:
        account = expired(account, _amounts(row))
    if lost:
        _save(account, at, wanted.ends, connection)
    return account


def _allow(
    key: AccountKey,
    at: float,
    limits: dict[str, float],
    lifted: bool,
    connection: apsw.Connection,
) -> Account:
    account = _read(key, connection)
    if account is None:
        account = Account(budget=key.budget, subject=key.subject, started_at=at)
    account = replace(account, limits=limits, lifted=lifted, updated_at=at)
    _save(account, at, False, connection)
    return account


def _reset(key: AccountKey, at: float, connection: apsw.Connection) -> bool:
    values = (at, at, key.budget, key.subject)
    connection.execute(_RESET, values)
    return connection.changes() > 0


def _read_all(keys: tuple[AccountKey, ...], connection: apsw.Connection) -> tuple[Account, ...]:
    found = (_read(key, connection) for key in keys)
    return tuple(account for account in found if account is not None)


def _list(
    budget: str | None, tenant: str | None, limit: int, connection: apsw.Connection
) -> tuple[Account, ...]:
    rows: list[Any] = connection.execute(_LIST, (budget, tenant, limit)).fetchall()
    return _read_all(tuple(AccountKey(budget=b, subject=s) for b, s in rows), connection)


def _read(key: AccountKey, connection: apsw.Connection) -> Account | None:
    place = (key.budget, key.subject)
    rows: list[Any] = connection.execute(_FIND, place).fetchall()
    if not rows:
        return None
    tenant, *amounts, unpriced, started_at, updated_at, limits, lifted = rows[0]
    reserved: list[Any] = connection.execute(_RESERVED, place).fetchall()
    return Account(
        budget=key.budget,
        subject=key.subject,
        tenant=tenant,
        spent=_amounts(amounts[:4]),
        reserved=_amounts(reserved[0]),
        unpriced=unpriced,
        estimated=_amounts(amounts[4:]),
        started_at=started_at,
        updated_at=updated_at,
        limits=orjson.loads(limits),
        lifted=bool(lifted),
    )


def _save(account: Account, at: float, ends: bool, connection: apsw.Connection) -> None:
    place = (account.budget, account.subject, account.tenant)
    times = (account.started_at, max(at, account.updated_at))
    kept = (orjson.dumps(dict(account.limits)).decode(), account.lifted, ends)
    connection.execute(
        _SAVE,
        (*place, *_row(account.spent), *_row(account.estimated), account.unpriced, *times, *kept),
    )


def _row(amounts: Amounts) -> tuple[int, ...]:
    counts = (amounts.input_tokens, amounts.output_tokens, amounts.calls)
    return (round(amounts.usd * _PICO), *counts)


def _amounts(row: Sequence[int]) -> Amounts:
    usd, input_tokens, output_tokens, calls = row
    return Amounts(
        usd=usd / _PICO, input_tokens=input_tokens, output_tokens=output_tokens, calls=calls
    )
