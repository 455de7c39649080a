"""The import of LiteLLM when it fails, and when several threads want it at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = '''
import asyncio, importlib.abc, json, os, sys, warnings
from concurrent.futures import ThreadPoolExecutor

class FailOnce(importlib.abc.MetaPathFinder):
    """Makes the import of each named module fail the first time."""
    def __init__(self, *names):
        self.names = set(names)
    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            self.names.remove(name)
            raise MemoryError(name)

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "False"
warnings.simplefilter("error")
sys.meta_path.insert(0, FailOnce("litellm.llms.custom_httpx.http_handler", "litellm.main"))

from gateway.features.litellm import embedder as embedding
from gateway.features.litellm import sdk

def attempt(do):
    try:
        return do()
    except MemoryError as error:
        return str(error)

def left():
    return sorted(name for name in sys.modules if name.partition(".")[0] == "litellm")

first, after_first = attempt(sdk.load), left()
second, after_second = attempt(embedding._aembedding), left()
with ThreadPoolExecutor(4) as pool:
    lanes = [pool.submit(attempt, sdk.load) for _ in range(2)]
    embeds = [pool.submit(attempt, embedding._aembedding) for _ in range(2)]
    one, other = (job.result() for job in lanes)
    assert one is other
    assert one.split("anthropic/claude-sonnet-4-5", {})[0] == "anthropic"
    assert all(job.result() is sys.modules["litellm"].aembedding for job in embeds)
print(json.dumps({
    "failures": [first, second],
    "left": after_first + after_second,
    "price list": os.environ["LITELLM_LOCAL_MODEL_COST_MAP"],
}))
'''


@pytest.mark.nightly
def test_a_failed_import_is_undone_and_tried_again() -> None:
    """An early and a late part fail once; nothing of LiteLLM stays, and four threads then get it.

    When this fails, look at `gateway/features/litellm/sdk.py`.
    """
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "failures": ["litellm.llms.custom_httpx.http_handler", "litellm.main"],
        "left": [],
        "price list": "True",
    }
