"""A probe from outside: how long a server's event loop makes a trivial request wait.

A process of its own, so that the load generator's own pauses are not taken for the server's:
`python -m bench.probe --port N --path /healthz` asks every 20 ms until stdin closes, then prints
the latencies in milliseconds as one JSON list.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time

from bench.client import LOOPBACK, get

PERIOD_S = 0.02


def main() -> None:
    """Probe until stdin closes."""
    parser = argparse.ArgumentParser(prog="python -m bench.probe", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", required=True)
    options = parser.parse_args()
    request = get(options.path)
    latencies = []
    with socket.create_connection((LOOPBACK, options.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not select.select([sys.stdin], [], [], PERIOD_S)[0]:
            started = time.perf_counter()
            sock.sendall(request)
            if not sock.recv(65536):
                break
            latencies.append(round((time.perf_counter() - started) * 1000, 3))
    json.dump(latencies, sys.stdout)


if __name__ == "__main__":
    main()
