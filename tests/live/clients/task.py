"""The task of every client here: two travellers, five cities each, one tool, at the same time.

Each program is run by the Python of its client's environment, with the gateway's base URL as its
only argument; nothing of the client is changed but that. It prints the two final answers as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

TRAVELLERS = ("Ann", "Ben")
BASE_URL = sys.argv[1]
API_KEY = "sk-not-needed"
MODEL = "scripted"
TOGETHER_S = 120

_both = threading.Barrier(len(TRAVELLERS))


def prompt(traveller: str) -> str:
    """What one traveller asks for."""
    return f"Look up the weather of five cities for {traveller}, one at a time."


def together() -> None:
    """Wait until the other conversation has come as far."""
    _both.wait(TOGETHER_S)


def weather(city: str, traveller: str) -> str:
    """What the tool answers."""
    together()
    return f"{city}: 21 degrees, says {traveller}"


def run_both(converse: Callable[[str], str]) -> None:
    """Both conversations, in threads; prints their answers."""
    with ThreadPoolExecutor(len(TRAVELLERS)) as pool:
        print(json.dumps(list(pool.map(converse, TRAVELLERS))))
