"""Accounts of budgets, each in one row that names its leases.

A change of accounts is one statement: a row is written only if it has the version that was read."""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import orjson
from cachetools import FIFOCache
from msgspec import json, structs

from gateway.budget_interface import Amounts
from gateway.features.budgets.accounts import (
    Account,
    AccountKey,
    BudgetStore,
    Change,
    Lease,
    Stored,
)
from gateway.stores.protocols import StoreBusy
from gateway.stores.sql.engine import Connection, Engine, Row, columns, excluded, row_of
from gateway.values import FieldDict, by_name

# Costs are stored as millionths of a millionth of a dollar: whole numbers add up exactly.
_PICO = 10**12
_AMOUNTS = ("usd", "input_tokens", "output_tokens", "calls")
_ESTIMATED = tuple([f"estimated_{name}" for name in _AMOUNTS])
_PLAIN = ("tenant", "unpriced", "started_at", "updated_at", "lifted")
_STORED = ("mac", "limits", "leases", "leased_until", "ends", "version")
_SAVED = ("budget", "subject", *_PLAIN, *_AMOUNTS, *_ESTIMATED, *_STORED)
_MOST_KNOWN = 20_000  # the accounts last used; one costs about 1 kB
_AT_ONCE = 32  # rows of one statement
_TRIES = 100
_LEASES = json.Decoder(dict[str, Lease])
_FIND = f"SELECT {columns(_SAVED)} FROM budget_accounts"
_LIST = f"""
{_FIND}
WHERE (CAST(:budget AS TEXT) IS NULL OR budget = :budget)
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
ORDER BY updated_at DESC, budget, subject LIMIT :limit
"""
_PRUNE = """
DELETE FROM budget_accounts WHERE ends AND updated_at < :older_than AND leased_until < :older_than
RETURNING TRUE
"""


class SQLBudgetStore(BudgetStore):
    """`BudgetStore` over an engine."""

    def __init__(self, engine: Engine):
        self._engine = engine
        # As they were last seen: if nobody else has changed them, one statement suffices.
        self._known: FIFOCache[AccountKey, Stored] = FIFOCache(_MOST_KNOWN)

    async def change(self, changes: Mapping[AccountKey, Change]) -> Mapping[AccountKey, Stored]:
        left = list(changes)
        done = {}
        for _ in range(_TRIES):
            for start in range(0, len(left), _AT_ONCE):
                keys = left[start : start + _AT_ONCE]
                made = {key: changes[key](self._known.get(key)) for key in keys}
                made = {key: structs.replace(s, version=s.version + 1) for key, s in made.items()}
                for budget, subject in await self._engine.write(_save(len(keys)), **_rows(made)):
                    key = AccountKey(budget=budget, subject=subject)
                    self._known[key] = done[key] = made[key]
            left = [key for key in left if key not in done]
            if not left:
                return done
            for key in left:
                self._known.pop(key, None)
            found = await self._engine.read(partial(_read_all, left, self._engine.secret))
            self._known.update(found)
        raise StoreBusy("other gateways changed the budget each time")

    def signed(self, account: Account) -> Account:
        return replace(account, mac=_mac(account, self._engine.secret), forged=False)

    async def accounts(self, keys: Sequence[AccountKey]) -> tuple[Account, ...]:
        found = await self._engine.view(partial(_read_all, tuple(keys), self._engine.secret))
        return tuple([found[key].seen() for key in keys if key in found])

    async def list_accounts(
        self, *, budget: str | None = None, tenant: str | None = None, limit: int = 200
    ) -> tuple[Account, ...]:
        rows = await self._engine.fetch(_LIST, budget=budget, tenant=tenant, limit=limit)
        return tuple([_stored(row, self._engine.secret).seen() for row in rows])

    async def prune(self, older_than: float) -> int:
        return len(await self._engine.write(_PRUNE, older_than=older_than))


@lru_cache(maxsize=_AT_ONCE)
def _save(rows: int) -> str:
    """The statement that writes so many accounts; it returns the keys of those that it wrote."""
    lines = [columns([f"{name}_{n}" for name in _SAVED], ":") for n in range(rows)]
    return f"""
INSERT INTO budget_accounts ({columns(_SAVED)}) VALUES ({"), (".join(lines)})
ON CONFLICT (budget, subject) DO UPDATE SET {excluded(_SAVED[2:])}
WHERE budget_accounts.version = excluded.version - 1 RETURNING budget, subject
"""


def _rows(made: Mapping[AccountKey, Stored]) -> FieldDict:
    # In one order everywhere, so that two never wait for each other.
    ordered = sorted(made.items(), key=lambda item: (item[0].budget, item[0].subject))
    found: FieldDict = {}
    for number, (_, stored) in enumerate(ordered):
        found |= {f"{name}_{number}": value for name, value in _row(stored).items()}
    return found


def _row(stored: Stored) -> FieldDict:
    account = stored.account
    return {
        **row_of(account, ("budget", "subject", "mac", *_PLAIN)),
        **by_name(_AMOUNTS, _numbers(account.spent)),
        **by_name(_ESTIMATED, _numbers(account.estimated)),
        "limits": orjson.dumps(dict(account.limits)).decode(),
        "leases": json.encode(stored.leases).decode(),
        "leased_until": max((lease.until for lease in stored.leases.values()), default=0.0),
        **row_of(stored, ("ends", "version")),
    }


async def _read_all(
    keys: Sequence[AccountKey], secret: bytes, connection: Connection
) -> dict[AccountKey, Stored]:
    found = {}
    for start in range(0, len(keys), _AT_ONCE):
        part = list(enumerate(keys[start : start + _AT_ONCE]))
        these = " OR ".join([f"budget = :budget_{n} AND subject = :subject_{n}" for n, _ in part])
        bound = {f"budget_{n}": key.budget for n, key in part}
        bound |= {f"subject_{n}": key.subject for n, key in part}
        rows = await connection.fetch(f"{_FIND} WHERE {these}", **bound)
        found.update({s.account.key: s for s in [_stored(row, secret) for row in rows]})
    return found


def _stored(row: Row, secret: bytes) -> Stored:
    found = by_name(_SAVED, row)
    account = Account(
        **{name: found[name] for name in ("budget", "subject", "mac", *_PLAIN[:-1])},
        lifted=bool(found["lifted"]),
        spent=_amounts([found[name] for name in _AMOUNTS]),
        estimated=_amounts([found[name] for name in _ESTIMATED]),
        limits=orjson.loads(found["limits"]),
    )
    if secret and (account.limits or account.lifted or account.mac):
        valid = hmac.compare_digest(account.mac, _mac(account, secret))
        account = replace(account, forged=not valid)
    return Stored(
        account=account,
        leases=_LEASES.decode(found["leases"]),
        ends=bool(found["ends"]),
        version=found["version"],
    )


def _mac(account: Account, secret: bytes) -> str:
    """The MAC of what an operator set for an account; empty without a secret."""
    said = (account.budget, account.subject, account.started_at, account.lifted)
    text = repr((said, sorted(account.limits.items())))
    if secret:
        return hmac.new(secret, text.encode(), "sha256").hexdigest()
    return ""


def _numbers(amounts: Amounts) -> tuple[int, ...]:
    usd, *counts = row_of(amounts, _AMOUNTS).values()
    return (round(usd * _PICO), *counts)


def _amounts(row: Row) -> Amounts:
    usd, *counts = row
    return Amounts(usd=usd / _PICO, **by_name(_AMOUNTS[1:], counts))
