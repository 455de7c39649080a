"""Running a command as if it had been started directly.

The child keeps the terminal, the process group and the standard streams: keys, the window's size
and job control work without help. What is left to do is to pass on signals that somebody sends to
this process alone, to stop when the child stops, and to end as it ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from gateway.errors import ConfigError

NOT_FOUND = 127
NOT_EXECUTABLE = 126
"""Exit statuses of the shell for a command that cannot be started."""

_PASSED_ON = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT")
_WAITED_FOR = (*_PASSED_ON, "SIGTSTP", "SIGCHLD")
# Python ignores these two, and an ignored signal stays ignored in the program that is started.
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ")
_LOOK_S = 0.2  # between two looks, should the signal of the child's end be another thread's
_HAS_SIGNALS = hasattr(signal, "sigtimedwait") and hasattr(os, "posix_spawnp")


class CannotStart(ConfigError):
    """The command cannot be started; `status` is what a shell would return."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Keep the signals of the child's time for `run`.

    Threads that are started inside never get them. One that was there before (libraries start some
    when they are imported) may, so each signal also has a handler, which notes it for `run`.
    """
    if not _HAS_SIGNALS:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _signals(_WAITED_FOR))
    handlers = {
        number: signal.signal(number, _note)
        for number in _signals((*_PASSED_ON, "SIGTSTP"))
        if signal.getsignal(number) is not signal.SIG_IGN  # as `nohup` wants it, also in the child
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_noted: deque[int] = deque()
"""Signals that another thread has got, for the next look of `run`."""


def _note(number: int, _frame: object) -> None:
    _noted.append(number)


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit status of `command`; 128 + n when signal n ended it, as a shell says it.

    To be called inside `signals_held`.

    Raises:
        CannotStart: there is no such command, or it cannot be executed.
    """
    try:
        if not _HAS_SIGNALS:
            return _status(_run_simply(command, environment))
        return _status(_wait_for(_spawn(command, environment)))
    except FileNotFoundError as exc:
        raise CannotStart(f"{command[0]}: command not found", NOT_FOUND) from exc
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise CannotStart(f"{command[0]}: cannot be started: {reason}", NOT_EXECUTABLE) from exc


def _run_simply(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Where signals cannot be waited for (macOS, Windows): Ctrl-C is the child's alone."""
    signal.signal(signal.SIGINT, lambda *_: None)
    with subprocess.Popen(command, env=environment) as process:  # noqa: S603 - the user's own
        signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
        return process.wait()


def _spawn(command: Sequence[str], environment: Mapping[str, str]) -> int:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return os.posix_spawnp(
        command[0],
        list(command),
        dict(environment),
        setsigmask=mask - _signals(_WAITED_FOR),
        setsigdef=_signals(_IGNORED_BY_PYTHON),
    )


def _wait_for(child: int) -> int:
    """Wait until the child has ended; returns its exit code, negative for a signal."""
    interactive = any(os.isatty(stream) for stream in (0, 1, 2))
    while True:
        ended, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if ended and os.WIFSTOPPED(status):
            if interactive:  # the shell waits for this process to stop, too
                os.kill(os.getpid(), signal.SIGSTOP)
        elif ended:
            return os.waitstatus_to_exitcode(status)
        info = signal.sigtimedwait(_signals(_WAITED_FOR), _LOOK_S)
        # From the terminal the child has got it already: it is in the same process group.
        if info is not None and info.si_code <= 0:
            _pass_on(child, info.si_signo)
        while _noted:
            number = _noted.popleft()
            if not (interactive and number in _signals(("SIGINT", "SIGQUIT"))):
                _pass_on(child, number)


def _pass_on(child: int, number: int) -> None:
    if number in _signals(_PASSED_ON):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)


def _status(code: int) -> int:
    return code if code >= 0 else 128 - code


def _signals(names: Sequence[str]) -> set[int]:
    return {int(getattr(signal, name)) for name in names if hasattr(signal, name)}
