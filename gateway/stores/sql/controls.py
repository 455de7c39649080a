"""Holds on runs, and proofs of admin keys."""

from collections.abc import Sequence
from hashlib import scrypt, sha256
from secrets import token_hex

from gateway.stores.controls import Control
from gateway.stores.protocols import CONTROLS
from gateway.stores.sql.engine import Engine, Row, columns, excluded, insert, record_of, row_of
from gateway.tasks import off_loop

_CONTROL = ("subject", "tenant", "action", "reason", "at", "author", "about")
_HOLD = f"""
{insert("run_controls", _CONTROL)}
ON CONFLICT (subject) DO UPDATE SET {excluded(_CONTROL[1:])}
"""
_ASK = f"{insert('run_controls', _CONTROL)} ON CONFLICT (subject) DO NOTHING"
_ASKED = "WHERE subject = :subject AND action = 'ask' AND at = :asked_at RETURNING TRUE"
_YES = f"DELETE FROM run_controls {_ASKED}"
_NO = f"""
UPDATE run_controls SET action = :action, reason = :reason, at = :at, author = :author {_ASKED}
"""
_LET_GO = "DELETE FROM run_controls WHERE subject = :subject RETURNING TRUE"
_CONTROLS = f"SELECT {columns(_CONTROL)} FROM run_controls ORDER BY at, subject"

_SALT = "SELECT proof FROM admin_keys WHERE pid = -1"
_MAKE_SALT = """
INSERT INTO admin_keys (pid, proof) VALUES (-1, :salt)
ON CONFLICT (pid) DO UPDATE SET proof = admin_keys.proof RETURNING proof
"""
_SHOW_KEY = """
INSERT INTO admin_keys (pid, proof) VALUES (:pid, :proof)
ON CONFLICT (pid) DO UPDATE SET proof = excluded.proof
"""
_SHOWN_KEYS = "SELECT pid, proof FROM admin_keys WHERE pid >= 0"


class ControlStore:
    """The holds in force, and proofs of admin keys. Every method may raise StoreError.

    No key is stored. A value derived from the key signs what operators set, and a digest of that
    value is stored. A key may be short, and who can read the database can try keys: hence scrypt
    (RFC 7914), 16 MB and about 50 ms a try."""

    def __init__(self, engine: Engine):
        self.engine = engine

    async def hold(self, control: Control) -> None:
        """Stop or pause in place of an earlier hold on the subject, or ask where there is none."""
        wanted = _HOLD
        if control.action == "ask":
            wanted = _ASK
        holding = self.engine.write(wanted, **row_of(control, _CONTROL))
        await self.engine.announced(CONTROLS, holding)

    async def release(self, subject: str) -> bool:
        """End a hold; False when there is none."""
        releasing = self.engine.write(_LET_GO, subject=subject)
        return bool(await self.engine.announced(CONTROLS, releasing))

    async def answer(self, asked: Control, after: Control | None) -> bool:
        """Replace an open question by a stop, or end it; False when it is open no more."""
        which = {"subject": asked.subject, "asked_at": asked.at}
        if after is not None:
            which |= row_of(after, ("action", "reason", "at", "author"))
        answering = self.engine.write(_NO if after else _YES, **which)
        return bool(await self.engine.announced(CONTROLS, answering))

    async def list_controls(self) -> Sequence[Control]:
        """All holds in force, oldest first."""
        return await self.engine.made(record_of(Control, _CONTROL), _CONTROLS)

    async def use_key(self, key: str) -> str:
        """Sign with an admin key from now on, and refuse what is signed otherwise; its proof."""
        rows = await self.engine.fetch(_SALT)
        rows = rows or await self.engine.write(_MAKE_SALT, salt=token_hex(16))
        salt = rows[0][0].encode()
        secret = await off_loop(scrypt, key.encode(), salt=salt, n=2**14, r=8, p=1)
        self.engine.secret = secret
        return sha256(secret).hexdigest()

    async def show_key(self, key: str, pid: int) -> None:
        """Use a key, and let commands ask for it in place of an earlier one of the process; 0 for
        the key of the config."""
        await self.engine.write(_SHOW_KEY, pid=pid, proof=await self.use_key(key))

    async def shown_keys(self) -> Sequence[Row]:
        """The process and the proof of each key."""
        return await self.engine.fetch(_SHOWN_KEYS)
