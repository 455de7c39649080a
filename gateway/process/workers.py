"""`server.workers`: several processes that serve on one address, and the parent that watches them.

Each worker is a whole gateway with a memory of its own, as replicas on several machines are: what a
conversation needs is in the store. The parent serves nothing. It passes signals on, starts another
worker for one that ended, and ends when all have drained. A worker whose parent is gone drains."""

import gc
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from types import FrameType

from gateway.errors import ConfigError
from gateway.observability.logging import get_logger
from gateway.process import collect_less_often
from gateway.values import frozen

_log = get_logger("gateway.process.workers")

NOT_STARTED = 3  # exit status of a worker that could not start, or lost records; its log says why
_RESTART_S = 1.0  # before a worker is started again: one that cannot start must not use up a core
_CLOSE_S = 5.0  # beyond the drain: to write what waits for the store
_PASSED_ON = (signal.SIGTERM, signal.SIGINT)


@frozen
class WorkerPlace:
    """One worker among several."""

    index: int  # of this worker, from 0
    count: int  # of all workers
    directory: Path  # where each has a socket on which it tells the others its metrics
    instance: str  # random id of them all, by which a request to the gateway itself is noticed
    parent: int  # descriptor that becomes readable when the parent has ended

    def metrics_socket(self, index: int) -> str:
        """The path of the socket on which a worker serves its metrics."""
        return str(self.directory / f"{index}.sock")


class Supervisor:
    """Starts a worker for each socket, which runs `serve` with it, and keeps them running. `serve`
    returns whether it served. `drain_s`: how long workers may take to end."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        serve: Callable[[WorkerPlace, socket.socket], bool],
        drain_s: float,
    ):
        self._sockets = sockets
        self._serve = serve
        self._drain_s = drain_s
        self._workers: dict[int, int] = {}
        self._proven: set[int] = set()
        self._stopping = False
        self._failed = False

    def run(self) -> bool:
        """Serve until SIGTERM or SIGINT; whether every worker could start and lost no record."""
        self._directory = Path(tempfile.mkdtemp(prefix="gateway-"))
        self._instance = token_hex(8)
        self._parent, self._held = os.pipe()
        for sig in (*_PASSED_ON, signal.SIGHUP, signal.SIGALRM):
            signal.signal(sig, self._on_signal)
        gc.freeze()  # what the workers share stays shared
        try:
            for index in range(len(self._sockets)):
                self._start(index)
            while self._workers:
                self._ended(*os.waitpid(-1, 0))
        finally:
            rmtree(self._directory, ignore_errors=True)
        return not self._failed

    def _start(self, index: int) -> None:
        # A signal between the fork and its entry would be passed on to all but this one.
        signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, signal.SIGHUP))
        pid = os.fork()
        if pid == 0:
            self._work(index)
        self._workers[pid] = index
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_PASSED_ON, signal.SIGHUP))

    def _work(self, index: int) -> None:
        """The life of a worker; does not return."""
        status = NOT_STARTED
        try:
            os.setpgid(0, 0)  # a terminal's interrupt goes to the parent, which passes it on
            os.close(self._held)
            own = self._sockets[index]
            for other in self._sockets:
                if other is not own:
                    other.close()
            random.seed()
            for sig in (*_PASSED_ON, signal.SIGHUP, signal.SIGALRM):
                signal.signal(sig, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_PASSED_ON, signal.SIGHUP))
            place = WorkerPlace(
                index=index,
                count=len(self._sockets),
                directory=self._directory,
                instance=self._instance,
                parent=self._parent,
            )
            if self._serve(place, own):
                status = 0
        except SystemExit as exc:
            status = 1
            if isinstance(exc.code, int):
                status = exc.code
        except BaseException:
            _log.exception("worker failed", worker=index)
            status = 1
        finally:
            os._exit(status)  # never back into the parent's code

    def _ended(self, pid: int, waited: int) -> None:
        index = self._workers.pop(pid)
        status = os.waitstatus_to_exitcode(waited)
        if self._stopping:
            self._sockets[index].close()  # so that new connections go to those that still drain
            self._failed |= status == NOT_STARTED
            return
        if status == NOT_STARTED and index not in self._proven:
            self._failed = True
            self._stop()
            return
        self._proven.add(index)
        _log.error("a worker ended, another is started", worker=index, status=status)
        time.sleep(_RESTART_S)
        if not self._stopping:
            self._start(index)

    def _on_signal(self, sig: int, _frame: FrameType | None) -> None:
        if sig == signal.SIGALRM:
            self._send(signal.SIGKILL)
        elif sig == signal.SIGHUP or self._stopping:
            self._send(sig)  # a second interrupt ends what still runs
        else:
            self._stop()

    def _stop(self) -> None:
        self._stopping = True
        self._send(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, self._drain_s + _CLOSE_S)

    def _send(self, sig: int) -> None:
        for pid in self._workers:
            os.kill(pid, sig)


def bind(host: str, port: int) -> socket.socket:
    """A socket on the address, which no other program has. Raises: ConfigError."""
    if ":" in host:
        family = socket.AF_INET6
    else:
        family = socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        raise ConfigError(f"server: cannot listen on {host}:{port}: {exc.strerror}") from exc
    return sock


def shared_sockets(first: socket.socket, count: int) -> list[socket.socket]:
    """A socket for each of `count` workers on the address of `first`, which is bound and unused. On
    Linux the kernel spreads connections evenly over sockets of their own; on one socket a worker
    that is awake takes nearly all of a burst. Raises: OSError."""
    if sys.platform != "linux":
        return [first] * count
    address = first.getsockname()
    first.close()  # it was bound without sharing, to notice another program on the address
    sockets = []
    for _ in range(count):
        sock = socket.socket(first.family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        sockets.append(sock)
    return sockets


def freeze_startup_objects() -> None:
    """Exclude the objects of the start from garbage collection, and collect less often: parsing a
    long body would cause fourteen collections over all of them. Source: bench/steps.py."""
    gc.collect()
    gc.freeze()
    collect_less_often()
