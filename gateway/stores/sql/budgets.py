"""Accounts of budgets, each step of which locks its accounts in one order; and holds on runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from gateway.stores import budgets as values
from gateway.stores.protocols import CONTROLS
from gateway.stores.sql import engine as db

# Costs are stored as millionths of a millionth of a dollar: whole numbers add up exactly.
_PICO = 10**12
_LOCKS = 1
_AMOUNTS = ("usd", "input_tokens", "output_tokens", "calls")
_ESTIMATED = tuple([f"estimated_{name}" for name in _AMOUNTS])
_SPENT = (*_AMOUNTS, *_ESTIMATED, "unpriced")
_SAVED = ("budget", "subject", "tenant", *_SPENT, "started_at", "updated_at", "limits", "lifted")
_THIS = "WHERE budget = :budget AND subject = :subject"
_FIND = f"SELECT {db.columns(_SAVED[2:])} FROM budget_accounts {_THIS}"
_RESERVED = f"""
SELECT {", ".join([f"CAST(coalesce(sum({name}), 0) AS BIGINT)" for name in _AMOUNTS])}
FROM budget_reservations {_THIS}
"""
_SAVE = f"""
{db.insert("budget_accounts", (*_SAVED, "ends"))}
ON CONFLICT (budget, subject) DO UPDATE
SET {db.excluded((*_SPENT, "updated_at", "limits", "lifted"))}
"""
_RESERVE = db.insert("budget_reservations", ("budget", "subject", "claim", *_AMOUNTS, "expires_at"))
_RELEASE = f"DELETE FROM budget_reservations {_THIS} AND claim = :claim RETURNING TRUE"
_EXPIRE = f"""
DELETE FROM budget_reservations {_THIS} AND expires_at < :at RETURNING {db.columns(_AMOUNTS)}
"""
_LIST = """
SELECT budget, subject FROM budget_accounts
WHERE (CAST(:budget AS TEXT) IS NULL OR budget = :budget)
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
ORDER BY updated_at DESC, budget, subject LIMIT :limit
"""
_RESET = f"""
UPDATE budget_accounts SET {", ".join([f"{name} = 0" for name in _SPENT])},
    started_at = :at, updated_at = :at, limits = '{{}}', lifted = FALSE {_THIS} RETURNING TRUE
"""
_PRUNE = """
DELETE FROM budget_accounts WHERE ends AND updated_at < :older_than AND NOT EXISTS (
    SELECT 1 FROM budget_reservations AS r
    WHERE r.budget = budget_accounts.budget AND r.subject = budget_accounts.subject
) RETURNING TRUE
"""
_PRUNE_RESERVATIONS = "DELETE FROM budget_reservations WHERE expires_at < :older_than"
_CONTROL = ("subject", "tenant", "action", "reason", "at", "author")
_HOLD = f"""
{db.insert("run_controls", _CONTROL)}
ON CONFLICT (subject) DO UPDATE SET {db.excluded(_CONTROL[1:])}
"""
_LET_GO = "DELETE FROM run_controls WHERE subject = :subject RETURNING TRUE"
_CONTROLS = f"SELECT {db.columns(_CONTROL)} FROM run_controls ORDER BY at, subject"


class SQLBudgetStore:
    """`BudgetStore` over an engine."""

    def __init__(self, engine: db.Engine) -> None:
        self._engine = engine

    async def reserve(self, claim: values.Claim) -> values.Reserved:
        async def work(connection: db.Connection) -> values.Reserved:
            await _lock([wanted.key for wanted in claim.accounts], connection)
            accounts = [await _current(each, claim.at, connection) for each in claim.accounts]
            outcome = values.decide(accounts, claim)
            if outcome.refusals and claim.binding:
                return outcome
            reserved = {"claim": claim.id, "expires_at": claim.expires_at}
            reserved |= _row(claim.estimate, _AMOUNTS)
            for wanted, account in zip(claim.accounts, accounts, strict=True):
                await _save(account, claim.at, wanted.ends, connection)
                await connection.fetch(_RESERVE, **_place(wanted.key), **reserved)
            return outcome

        return await self._engine.transact(work)

    async def settle(self, settlement: values.Settlement) -> tuple[values.Account, ...]:
        claim = settlement.claim

        async def work(connection: db.Connection) -> tuple[values.Account, ...]:
            await _lock([wanted.key for wanted in claim.accounts], connection)
            after = []
            for wanted in claim.accounts:
                place = _place(wanted.key)
                found = bool(await connection.fetch(_RELEASE, **place, claim=claim.id))
                known = await _read(wanted.key, connection)
                account = values.settled(
                    known or values.opened(wanted, claim.at), settlement, found=found
                )
                await _save(account, settlement.at, wanted.ends, connection)
                after.append(account)
            return tuple(after)

        return await self._engine.transact(work)

    async def accounts(self, keys: Sequence[values.AccountKey]) -> tuple[values.Account, ...]:
        return await self._engine.view(partial(_read_all, tuple(keys)))

    async def list_accounts(
        self, *, budget: str | None = None, tenant: str | None = None, limit: int = 200
    ) -> tuple[values.Account, ...]:
        async def work(connection: db.Connection) -> tuple[values.Account, ...]:
            rows = await connection.fetch(_LIST, budget=budget, tenant=tenant, limit=limit)
            keys = [values.AccountKey(budget=b, subject=s) for b, s in rows]
            return await _read_all(keys, connection)

        return await self._engine.view(work)

    async def allow(
        self, key: values.AccountKey, *, at: float, limits: Mapping[str, float], lifted: bool
    ) -> values.Account:
        async def work(connection: db.Connection) -> values.Account:
            await _lock([key], connection)
            account = await _read(key, connection)
            if account is None:
                account = values.Account(budget=key.budget, subject=key.subject, started_at=at)
            account = replace(account, limits=dict(limits), lifted=lifted, updated_at=at)
            await _save(account, at, False, connection)
            return account

        return await self._engine.transact(work)

    async def reset(self, key: values.AccountKey, *, at: float) -> bool:
        async def work(connection: db.Connection) -> bool:
            await _lock([key], connection)
            return bool(await connection.fetch(_RESET, **_place(key), at=at))

        return await self._engine.transact(work)

    async def prune(self, older_than: float) -> int:
        async def work(connection: db.Connection) -> int:
            await connection.fetch(_PRUNE_RESERVATIONS, older_than=older_than)
            return len(await connection.fetch(_PRUNE, older_than=older_than))

        return await self._engine.transact(work)


class ControlStore:
    """The holds in force. Every method may raise StoreError."""

    def __init__(self, engine: db.Engine) -> None:
        self._engine = engine

    async def hold(self, control: values.Control) -> None:
        """Stop or pause; replaces an earlier hold on the same subject."""
        await self._engine.write(_HOLD, **db.row_of(control, _CONTROL))
        await self._engine.changed(CONTROLS)

    async def release(self, subject: str) -> bool:
        """End a hold; False when there is none."""
        released = bool(await self._engine.write(_LET_GO, subject=subject))
        await self._engine.changed(CONTROLS)
        return released

    async def list_controls(self) -> Sequence[values.Control]:
        """All holds in force, oldest first."""
        rows = await self._engine.fetch(_CONTROLS)
        return [db.made(values.Control, _CONTROL, row) for row in rows]


async def _lock(keys: Sequence[values.AccountKey], connection: db.Connection) -> None:
    # An account may not exist yet, so its name is locked and not its row.
    await connection.lock([f"{key.budget}\n{key.subject}" for key in keys], _LOCKS)


async def _current(wanted: values.Wanted, at: float, connection: db.Connection) -> values.Account:
    """The account, with reservations whose gateway has not ended them counted as spent."""
    lost = await connection.fetch(_EXPIRE, **_place(wanted.key), at=at)
    account = await _read(wanted.key, connection)
    if account is None:
        return values.opened(wanted, at)
    for row in lost:
        account = values.expired(account, _amounts(row))
    if lost:
        await _save(account, at, wanted.ends, connection)
    return account


async def _read_all(
    keys: Sequence[values.AccountKey], connection: db.Connection
) -> tuple[values.Account, ...]:
    found = [await _read(key, connection) for key in keys]
    return tuple([account for account in found if account is not None])


async def _read(key: values.AccountKey, connection: db.Connection) -> values.Account | None:
    row = await connection.row(_FIND, **_place(key))
    if row is None:
        return None
    (reserved,) = await connection.fetch(_RESERVED, **_place(key))
    found = dict(zip(_SAVED[2:], row, strict=True))
    return values.Account(
        **_place(key),
        **{name: found[name] for name in ("tenant", "unpriced", "started_at", "updated_at")},
        spent=_amounts([found[name] for name in _AMOUNTS]),
        reserved=_amounts(reserved),
        estimated=_amounts([found[name] for name in _ESTIMATED]),
        limits=orjson.loads(found["limits"]),
        lifted=bool(found["lifted"]),
    )


async def _save(account: values.Account, at: float, ends: bool, connection: db.Connection) -> None:
    await connection.fetch(
        _SAVE,
        **_place(account.key),
        **_row(account.spent, _AMOUNTS),
        **_row(account.estimated, _ESTIMATED),
        **db.row_of(account, ("tenant", "unpriced", "started_at", "lifted")),
        updated_at=max(at, account.updated_at),
        limits=orjson.dumps(dict(account.limits)).decode(),
        ends=ends,
    )


def _place(key: values.AccountKey) -> dict[str, Any]:
    return db.row_of(key, ("budget", "subject"))


def _row(amounts: values.Amounts, names: Sequence[str]) -> dict[str, Any]:
    found = db.row_of(amounts, _AMOUNTS) | {"usd": round(amounts.usd * _PICO)}
    return dict(zip(names, found.values(), strict=True))


def _amounts(row: db.Row) -> values.Amounts:
    usd, *counts = row
    return values.Amounts(usd=usd / _PICO, **dict(zip(_AMOUNTS[1:], counts, strict=True)))
