"""Settings of the stores; importing this module loads no database library."""

import os
from urllib.parse import urlsplit

from gateway.config.values import Secret, above_zero, at_least
from gateway.core.plugins import plugins
from gateway.hooks import written
from gateway.values import frozen

IN_MEMORY = ":memory:"
SPOOL = "-spool"  # suffix of the folder in which records wait for a file
PRICES = "-prices.json"  # suffix of the list of prices that is kept for a file
MOVES = "-moves"  # suffix of the folder of a restore that is decided
SYNCHRONOUS = ("normal", "full")
# By the scheme of `storage.url`: what opens the stores, imported when they are opened.
STORES: dict[str, str] = {
    "": ".backends:open_sqlite",  # the file at `storage.path`
    **written("databases"),
}
STORES |= {each.name: each.value for each in plugins("steering_gateway.stores", STORES)}


@frozen
class StorageSettings:
    """Database of the runs: its place, durability and retention. Raises: ValueError (`<field>:
    <what is wrong>`).

    When a store counts as unavailable, and what waits for it:
    `gateway/features/store_outages/guarded.py`, on disk `disk_spool.py`. The clock:
    `gateway/retention_schedule.py`.
    """

    # SQLite file; ":memory:" = SQLite in memory, lost when the process ends
    path: str = "gateway.db"
    # a newer version copies the file to `PATH.before-FORM` before it changes the tables; an older
    # version goes on with the copy; without room for it nothing is changed
    copy_before_changes: bool = True
    # a PostgreSQL database in place of the file, as libpq writes it, with its TLS options such as
    # `sslmode` and `sslrootcert`
    url: Secret | None = None
    # the same database past a pooler in transaction mode, for notifications; None = storage.url
    listen_url: Secret | None = None
    # false for a pooler in transaction mode that does not keep them
    prepared_statements: bool = True
    # with `normal` no commit is lost when the process dies (`kill -9` included), but a power cut
    # may lose the newest; `full` waits for the disk at every commit; the file stays consistent in
    # both cases
    synchronous: str = "normal"
    store_content: bool = True  # false = store digests and numbers only
    # newest calls kept as they were sent and received, compressed; MiB, 0 = none; needs
    # store_content
    raw_mb: float = 0.0
    raw_max_kb: float = 1024.0  # a longer request or answer is cut; KiB
    # keys, tokens and passwords in stored texts become [masked:KIND]; what is sent upstream is not
    # touched (docs/security.md)
    mask_secrets: bool = True
    retention_days: float = 30.0  # older runs are deleted; days, 0 = never
    # above this size the oldest runs are deleted; MiB, 0 = no limit; in memory 1,535 at most, and
    # more than 2,047 cannot be stored
    max_size_mb: float = 4096.0
    retention_interval_s: float = 3600.0  # time between two deletions; seconds
    busy_timeout_ms: int = 5000  # longest wait while another process writes; milliseconds
    queue_limit: int = 10_000  # most writes that may wait
    reader_threads: int = 2  # threads for queries, 1 to 64
    cache_mb: int = 4  # page cache per connection; MiB
    # when no commit is finished for this long, answers no longer wait for their records, and the
    # store is degraded; milliseconds
    commit_limit_ms: float = 2000.0
    # failures in a row after which the store is degraded: answers no longer wait for it
    breaker_failures: int = 3
    # how often the file is checked, and a degraded store tried again; seconds
    probe_interval_s: float = 1.0
    # how long a gateway that starts waits for a PostgreSQL server that does not answer; seconds, 0
    # = not at all
    start_wait_s: float = 60.0
    # most records that wait in memory for a degraded store; further ones are dropped; 0 = all are
    # dropped
    spool_records: int = 10_000
    spool_mb: float = 64.0  # most memory of these records; MiB
    # with url: folder on a local disk where they wait, too, so that a killed gateway loses none;
    # for a file in a folder next to it; None = memory only
    spool_path: str | None = "gateway-spool"
    # how long an answer waits for its record to be written there; milliseconds
    spool_limit_ms: float = 250.0
    # a jump of the wall clock by more than this stops the deletion of runs by age; seconds
    clock_jump_s: float = 3600.0
    # how long the clock has to run evenly before it starts again; seconds
    clock_settle_s: float = 86_400.0

    def __post_init__(self) -> None:
        if not self.path.strip():
            raise ValueError(f"path: must name a file, or be {IN_MEMORY!r}")
        if "://" in self.path:  # not repeated: it may contain a password
            raise ValueError("path: is a URL; the key for a PostgreSQL database is storage.url")
        if self.synchronous not in SYNCHRONOUS:
            raise ValueError(f"synchronous: must be one of {', '.join(SYNCHRONOUS)}")
        at_least(
            self,
            0,
            "raw_mb",
            "max_size_mb",
            "spool_records",
            "spool_mb",
            "retention_days",
            "busy_timeout_ms",
            "clock_settle_s",
            "start_wait_s",
        )
        above_zero(
            self,
            "raw_max_kb",
            "queue_limit",
            "reader_threads",
            "cache_mb",
            "breaker_failures",
            "retention_interval_s",
            "commit_limit_ms",
            "probe_interval_s",
            "clock_jump_s",
            "spool_limit_ms",
        )
        if self.reader_threads > 64:
            raise ValueError("reader_threads: must be at most 64")
        if self.listen_url is not None and self.url is None:
            raise ValueError("listen_url: needs storage.url")
        for name in ("url", "listen_url"):
            _check_url(name, getattr(self, name))

    @property
    def kind(self) -> str:
        """The row of `STORES`: the scheme of `url`; empty for a file."""
        return urlsplit(self.url or "").scheme

    @property
    def in_memory(self) -> bool:
        """Whether everything stays in memory and ends with the process."""
        return self.url is None and self.path == IN_MEMORY

    @property
    def file(self) -> str:
        """The absolute path of the database's file; empty when it is in memory or on a server."""
        if self.in_memory or self.shared:
            return ""
        return os.path.abspath(self.path)

    @property
    def shared(self) -> bool:
        """Whether other gateways may use the same database at the same time."""
        return self.url is not None

    @property
    def spool_folder(self) -> str:
        """The folder in which records wait for the database; empty when there is none. For a file
        it is a folder next to it. That fails with the disk of the file, and helps while the file is
        locked, slow, damaged or replaced (docs/decisions/017)."""
        chosen = (self.spool_path or "").strip()
        if os.name != "posix" or not chosen or self.in_memory:
            return ""
        if self.shared:
            return chosen
        return f"{self.path}{SPOOL}"

    @property
    def prices_file(self) -> str:
        """The file for a list of prices that was given: beside the database's file; of a server in
        the folder of the spool. Empty where neither is on a disk."""
        if self.shared:
            return self.spool_folder and f"{self.spool_folder}/prices.json"
        return self.file and self.file + PRICES

    @property
    def place(self) -> str:
        """The database for messages: its path, or its URL without the password and options."""
        if self.url is None:
            return self.path
        parts = urlsplit(self.url)
        user = ""
        if parts.username:
            user = f"{parts.username}@"
        return f"{parts.scheme}://{user}{parts.netloc.rpartition('@')[2]}{parts.path}"


def is_there(path: str) -> bool:
    """Whether a file is at a path, or a restore that was killed has decided to move it there."""
    return os.path.exists(path + MOVES) or os.path.exists(path)  # the folder goes when it is there


def _check_url(name: str, url: str | None) -> None:
    # What is wrong is said without the URL, which may contain a password.
    if url is None:
        return
    try:
        parts = urlsplit(url)
        user, _, hosts = parts.netloc.rpartition("@")
        # Of several hosts, separated by commas, the driver takes the first that answers.
        for host in hosts.split(","):
            _ = urlsplit(f"//{host}").port
        if "@" in user:  # the driver would look for the host after the first one
            raise ValueError(user)
    except ValueError:
        raise ValueError(
            f"{name}: is not a URL; in a user or password / ? # @ % are %2F %3F %23 %40 %25"
        ) from None
    if parts.scheme not in STORES or not parts.scheme:
        raise ValueError(f"{name}: must begin with postgresql://")
    if not parts.path.strip("/"):
        raise ValueError(f"{name}: names no database: postgresql://user:password@host/database")
