"""The scripted upstream as a process of its own: `python -m steering_gateway_testing`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence

from steering_gateway_testing.ports import LOOPBACK
from steering_gateway_testing.upstream import ScriptedUpstream
from steering_gateway_testing.values import Fault, FaultKind, Reply

CONTENT = "The scripted upstream answers every request with this text."


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one reply, or one fault, until SIGINT or SIGTERM; the base URL goes to stdout."""
    options = _parser().parse_args(arguments)
    reply = Reply(
        _text(options.content_bytes, options.chunks),
        chunks=options.chunks,
        chunk_delay_s=None if options.chunk_delay_ms is None else options.chunk_delay_ms / 1000,
        first_byte_delay_s=options.first_byte_delay_ms / 1000,
    )
    upstream = ScriptedUpstream(reply, host=options.host, port=options.port, record=0)
    if options.fault:
        fault = Fault(FaultKind(options.fault), times=options.times or 1, reply=reply)
        if options.times:
            upstream.script(fault)
        else:
            upstream.default = fault
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with upstream:
        sys.stdout.write(f"{upstream.base_url}\n")
        sys.stdout.flush()
        ended.wait()
    return 0


def _text(size: int | None, chunks: int | None) -> str:
    """The reply's text: `size` bytes, or enough for every chunk to have a word."""
    if size is None:
        size = max(len(CONTENT), 6 * (chunks or 0))
    return ((CONTENT + " ") * (size // len(CONTENT) + 1))[:size]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m steering_gateway_testing", description=__doc__)
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--content-bytes", type=int, help="length of the reply's text")
    parser.add_argument("--chunks", type=int, help="content deltas of a stream; default one a word")
    parser.add_argument("--chunk-delay-ms", type=float, help="pause between stream events")
    parser.add_argument("--first-byte-delay-ms", type=float, default=0.0)
    parser.add_argument("--fault", choices=[kind.value for kind in FaultKind])
    parser.add_argument("--times", type=int, help="faults before success; default for ever")
    return parser


if __name__ == "__main__":
    sys.exit(main())
