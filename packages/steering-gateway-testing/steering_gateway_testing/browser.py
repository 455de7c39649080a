"""A real Chromium, driven over its DevTools protocol; nothing but the binary is needed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_START_S = 120.0
_WAIT_S = 120.0
_POLL_S = 0.02
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def chromium() -> str | None:
    """Where Chromium is, None when there is none."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One page; collects what went wrong and what was asked of the network."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        self.requested: list[str] = []
        self._socket = socket
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self._loads: set[str] = set()  # every page that has been loaded, by its loader
        self._page = ""  # the newest of them
        self._reader = asyncio.ensure_future(self._read())

    async def start(self) -> None:
        """Have the browser tell of everything."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.send(f"{domain}.enable")
        await self.send("Page.setLifecycleEventsEnabled", enabled=True)

    async def close(self) -> None:
        """Stop listening."""
        self._reader.cancel()
        await self._socket.close()

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its result."""
        self._number += 1
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        answer = await asyncio.wait_for(future, _WAIT_S)
        assert "error" not in answer, answer
        return dict(answer["result"])

    async def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        loader = (await self.send("Page.navigate", url=url))["loaderId"]
        async with asyncio.timeout(_WAIT_S):
            while loader not in self._loads:  # the page before may still be loading, too
                self._loaded.clear()
                await self._loaded.wait()

    async def log_in(self, url: str, key: str) -> None:
        """Open a session with a key."""
        await self.open(f"{url}/dashboard/login")
        await self.following(
            f"document.querySelector('#key').value = '{key}';"
            "document.querySelector('#key').form.requestSubmit()"
        )

    async def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        result = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, expression: str) -> Any:
        """The value of an expression once it is true."""
        async with asyncio.timeout(_WAIT_S):
            # A page that is just being left answers nothing.
            while True:
                with contextlib.suppress(AssertionError):
                    if value := await self.js(expression):
                        return value
                await asyncio.sleep(_POLL_S)

    async def following(self, expression: str) -> None:
        """Run an expression that leads to another page, and wait until that is there."""
        before = self._page
        await self.js(expression)
        async with asyncio.timeout(_WAIT_S):
            while self._page == before:
                self._loaded.clear()
                await self._loaded.wait()

    async def key(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        codes = {"ArrowRight": 39, "ArrowLeft": 37, "Enter": 13, "Tab": 9, "Escape": 27}
        more = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        for kind in ("keyDown", "keyUp"):
            await self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                **more,
                **(text if kind == "keyDown" else {}),
            )

    async def look(self, *, width: int, dark: bool = False, height: int = 900) -> None:
        """Take on a size and a colour scheme."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot of what is seen, or of the whole page."""
        shot = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))

    def foreign(self, own: str) -> list[str]:
        """What was asked of anybody but `own`."""
        schemes = ("http", "https", "ws", "wss")
        parts = [(url, urlsplit(url)) for url in self.requested]
        wanted = urlsplit(own).netloc
        return [url for url, part in parts if part.scheme in schemes and part.netloc != wanted]

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                self._take(json.loads(message.data))

    def _take(self, news: dict[str, Any]) -> None:
        if "id" in news:
            future = self._waiting.pop(news["id"])
            if not future.done():
                future.set_result(news)
            return
        params = news.get("params", {})
        match news["method"]:
            case "Page.lifecycleEvent" if params["name"] == "load":
                self._page = params["loaderId"]
                self._loads.add(self._page)
                self._loaded.set()
            case "Network.requestWillBeSent":
                self.requested.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(json.dumps(params["args"])[:500])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.problems.append(json.dumps(params["entry"])[:500])


@contextlib.contextmanager
def running(profile: Path, *flags: str) -> Iterator[int]:
    """The port of a fresh browser that keeps everything in `profile` and talks to nobody.

    flags: further switches of the browser.
    """
    binary = chromium()
    assert binary is not None
    process = subprocess.Popen(
        [binary, *_FLAGS, *flags, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield _port(process, profile)
    finally:
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def new_tab(port: int) -> AsyncIterator[Tab]:
    """A tab of a running browser, with cookies and storage of its own."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json/version") as answer:
            address = (await answer.json())["webSocketDebuggerUrl"]
        async with session.ws_connect(address, max_msg_size=0) as socket:
            whole = Tab(socket)
            # What was opened through this connection goes with it.
            own = await whole.send("Target.createBrowserContext", disposeOnDetach=True)
            made = await whole.send("Target.createTarget", url="about:blank", **own)
            page = f"ws://127.0.0.1:{port}/devtools/page/{made['targetId']}"
            async with session.ws_connect(page, max_msg_size=0) as page_socket:
                tab = Tab(page_socket)
                await tab.start()
                try:
                    yield tab
                finally:
                    await tab.close()
                    await whole.close()


@contextlib.asynccontextmanager
async def browser(profile: Path, *flags: str) -> AsyncIterator[Tab]:
    """A tab of a fresh browser; see `running`."""
    with contextlib.ExitStack() as stack:
        port = await asyncio.to_thread(stack.enter_context, running(profile, *flags))
        async with new_tab(port) as tab:
            yield tab


def _port(process: subprocess.Popen[bytes], profile: Path) -> int:
    """Where the browser listens, from the file in which it says so once it does."""
    file, until = profile / "DevToolsActivePort", time.monotonic() + _START_S
    while not file.exists() or not (said := file.read_text()).count("\n"):
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError("the browser did not start")
        time.sleep(_POLL_S)
    return int(said.split()[0])
