"""The runs that an operator has stopped or paused, and those about which a person is asked: in
memory for each call, in the store for all.

An operator can stop a run whatever features were deleted: holds need no budgets.
What one gateway holds is written at once, and read by the others every `control.poll_s`."""

import asyncio
import hmac
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from urllib.parse import quote

from msgspec.structs import replace

from gateway import errors
from gateway.backends import Stores
from gateway.config.control import ControlSettings
from gateway.core.monitors import MONITORS
from gateway.hooks import given
from gateway.observability.logging import get_logger
from gateway.stores.controls import GATEWAY, STEERING, Control, alarm_subject
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.protocols import StoreError
from gateway.stores.sql.controls import ControlStore
from gateway.stores.sql.runs import RunStore
from gateway.values import Texts

_log = get_logger("gateway.control")


_FIRST = ("stop", "ask", "pause", "off")  # of the holds on one call, the one that decides


class Holds:
    """The holds in force. Used on one event loop; `store` None: of this gateway only."""

    def __init__(self, store: ControlStore | None, settings: Callable[[], ControlSettings]):
        self._store = store
        self._settings = settings
        self._held: dict[str, Control] = {}
        self._unsaved: dict[str, Control | None] = {}
        self._changes = 0
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._failing = False

    @property
    def link_key(self) -> bytes:
        """The key by which links that answer questions are signed."""
        if self._store is None:
            return b""
        return self._store.engine.secret

    def __bool__(self) -> bool:
        """True if anything is held."""
        return bool(self._held)

    def listed(self) -> tuple[Control, ...]:
        """All holds, oldest first."""
        return tuple(sorted(self._held.values(), key=lambda each: (each.at, each.subject)))

    def find(self, subjects: Iterable[str]) -> Control | None:
        """The hold on any of the subjects: a stop before a question before a pause."""
        found = [self._held[name] for name in subjects if name in self._held]
        return min(found, key=lambda each: _FIRST.index(each.action), default=None)

    def muted(self, tenant: str, project: str) -> frozenset[str]:
        """The monitors whose alarms are muted for a project."""
        if not self._held:
            return frozenset()
        subjects = {name: alarm_subject(tenant, project, name) for name in MONITORS}
        return frozenset([name for name, subject in subjects.items() if subject in self._held])

    def runs_below(self, conversation_id: str) -> list[str]:
        """The ids of held runs of a conversation."""
        return [name for name in self._held if name.rpartition(".")[0] == conversation_id]

    async def hold(self, control: Control) -> bool:
        """Stop or pause from now on; False when the store does not have it yet, but will."""
        return await self._set(control.subject, control)

    async def release(self, subject: str) -> bool | None:
        """End a hold; None when there is none, False as in `hold`."""
        if subject not in self._held:
            return None
        return await self._set(subject, None)

    async def released(self, subjects: Callable[[], Sequence[str]], wait_s: float) -> bool:
        """Wait until none of the subjects is paused or asked about, at most `wait_s` seconds. A
        stop ends the wait, too."""
        end = time.monotonic() + wait_s
        while (found := self.find(subjects())) is not None and found.action != "stop":
            left = end - time.monotonic()
            if left <= 0:
                return False
            changed = self._changed
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
            except TimeoutError:
                continue
        return True

    async def refresh(self) -> None:
        """Read the holds again. Raises: StoreError, and keeps those known before."""
        if self._store is None:
            return
        for subject, control in list(self._unsaved.items()):
            await self._write(self._store, subject, control)
        began = self._changes
        listed = await self._store.list_controls()
        if began != self._changes:
            return  # a hold of ours came meanwhile: the next refresh reads it from the store
        held = {control.subject: control for control in listed}
        if held != self._held:
            self._held = held
            self._wake()

    async def follow(self) -> None:
        """Refresh for ever; a failing store is logged once until it works again."""
        while True:
            await asyncio.sleep(self._settings().poll_s)
            try:
                await self.refresh()
                self._failing = False
            except StoreError as error:
                if not self._failing:
                    _log.error("stops and pauses cannot be read again", reason=str(error))
                self._failing = True

    async def _set(self, subject: str, control: Control | None) -> bool:
        self._changes += 1
        if control is None:
            self._held.pop(subject, None)
        else:
            self._held[subject] = control
        self._wake()
        if self._store is None:
            return True
        self._unsaved[subject] = control
        try:
            await self._write(self._store, subject, control)
        except StoreError as error:
            _log.error("a stop or pause applies to this gateway only", reason=str(error))
            return False
        return True

    async def _write(self, store: ControlStore, subject: str, control: Control | None) -> None:
        # One at a time: a question is not stored again behind its answer.
        async with self._writing:
            if subject not in self._unsaved or self._unsaved[subject] != control:
                return
            if control is None:
                await store.release(subject)
            else:
                await store.hold(control)
            self._changes += 1
            if self._unsaved.get(subject) == control:
                del self._unsaved[subject]

    def _wake(self) -> None:
        """Let all who wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()


def stop_error(control: Control) -> errors.RunStopped:
    """The refusal of a call of a stopped run."""
    return errors.RunStopped(errors.STOPPED + _held(control), headers=errors.NO_RETRY)


def _held(control: Control) -> str:
    """`ordered by the operator (ann): it loops`, and that a person can end it."""
    said = control.reason
    if control.author != GATEWAY:
        author = ""
        if control.author:
            author = f" ({control.author})"
        said = f"the operator{author}{f': {said}' if said else ''}"
    return f"ordered by {said.rstrip('.')}.{errors.CAN_GO_ON}"


def pause_error(control: Control, retry_after_s: float) -> errors.RunPaused:
    """The refusal of a call of a run that stayed paused while the call waited."""
    retry = (("retry-after", f"{max(1, round(retry_after_s))}"),)
    return errors.RunPaused(f"Paused: {_held(control)}", headers=retry)


async def end_question(stores: Stores, asked: Control, after: Control | None) -> bool:
    """End a question: by a no, with the stop `after` it, or by a yes, after which the features that
    asked it do what they asked for, and answer what other runs ask about the same. False when it is
    open no more. Raises: StoreError."""
    controls = stores.controls
    if controls is None:
        return False
    if after is not None:
        return await controls.answer(asked, after)
    alike = [asked]
    for agreed in given("agreed"):
        alike += await agreed(stores, asked)
    done = [await controls.answer(each, None) for each in alike]
    return done[0]


async def answer_question(
    stores: Stores, subject: str, said: Texts, *, yes: bool, tenant: str | None = None
) -> Control | None:
    """Answer the question about a run, with `reason` and `author`. Returns the question; None when
    none is open. Raises: StoreError."""
    if stores.controls is None:
        return None
    for asked in await stores.controls.list_controls():
        if asked.subject == subject and tenant in (None, asked.tenant):
            break
    else:
        return None
    if asked.action != "ask":
        return None
    after = None
    if not yes:
        after = replace(asked, action="stop", at=time.time(), **said)
    if await end_question(stores, asked, after):
        return asked
    return None


def answer_path(asked: Control, answer: str, key: bytes) -> str:
    """The page of a signed link, which answers this question alone; `answer`: yes or no. `key`: of
    the admin key, which is not in the store as the question's own secret is."""
    question = asked.question
    secret = question.secret if question else ""
    until = question.until if question else 0.0
    about = f"{asked.subject}\n{asked.at!r}\n{answer}\n{until!r}"
    mac = hmac.new(secret.encode() + key, about.encode(), sha256).hexdigest()
    return f"/dashboard/answer/{quote(asked.subject, safe='')}/{answer}/{mac}"


async def known_subject(runs: RunStore, given: str, tenant: str | None) -> tuple[str, str] | None:
    """(id, tenant) of a run or conversation, or STEERING; None without one. Raises: StoreError."""
    if given == STEERING and tenant is None:
        return given, ""
    run = await runs.get_run(given, tenant=tenant, content=False, limit=0)
    if run is not None:
        return run.run.id, run.run.tenant
    wanted = RunFilter(tenant=tenant, conversation_id=given)
    page = await runs.list_runs(wanted, PageRequest(limit=1))
    if page.runs:
        return (given, page.runs[0].tenant)
    return None
