"""A real browser for the tests of pages: headless Chromium over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tornado.websocket import WebSocketClientConnection, websocket_connect

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_START_S = 60.0
_ACCEPT = bool(os.environ.get("BCD_ACCEPT"))  # the tests of commands take such variables away
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-port=0",
)


def browser_path() -> str:
    """Chromium's program; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("no Chromium here: apt install chromium")
    return found


class Page:
    """One page of a browser."""

    def __init__(self, socket: WebSocketClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.requested: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command; what the page does meanwhile is noted."""
        number = next(self._numbers)
        await self._socket.write_message(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            text = await self._socket.read_message()
            assert text is not None, "the browser has ended"
            message = json.loads(text)
            if message.get("method") == "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])

    async def evaluate(self, expression: str) -> Any:
        """A JavaScript expression's value, once its promise is kept."""
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true in the page."""
        await self.evaluate(
            f"new Promise(done => {{ const look = () => ({condition}) ? done(true) : setTimeout(look, 100); look(); }})"
        )

    async def screenshot(self, *, dark: bool = False) -> bytes:
        """A PNG of the page."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])


@contextlib.asynccontextmanager
async def open_page(url: str, *, width: int, height: int, offline: bool = False) -> AsyncIterator[Page]:
    """A new browser with a window of that size, at an URL; it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="bcd-browser-", ignore_cleanup_errors=True) as folder:
        process = _start(folder)
        try:
            socket = await websocket_connect(await asyncio.to_thread(_page_url, Path(folder)), max_message_size=2**28)
            page = Page(socket)
            for domain in ("Page", "Network"):
                await page.call(f"{domain}.enable")
            await page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
            if offline:
                conditions = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
                await page.call("Network.emulateNetworkConditions", **conditions)
            await page.call("Page.navigate", url=url)
            await page.until("document.readyState === 'complete'")
            yield page
            socket.close()
        finally:
            process.kill()
            process.wait()


def _start(folder: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [browser_path(), *_OPTIONS, f"--user-data-dir={folder}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _page_url(folder: Path) -> str:
    """Where the browser's first page listens, once it says so."""
    port_file, ends_at = folder / "DevToolsActivePort", time.monotonic() + _START_S
    while time.monotonic() < ends_at:
        with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
            connection = http.client.HTTPConnection("127.0.0.1", int(port_file.read_text().splitlines()[0]), timeout=10)
            with contextlib.closing(connection):
                connection.request("GET", "/json/list")
                targets = json.load(connection.getresponse())
            return str(next(target for target in targets if target["type"] == "page")["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise AssertionError(f"the browser does not answer after {_START_S:.0f} s")


def keep_picture(name: str, data: bytes) -> None:
    """Put a screenshot into the documentation, when that is asked for."""
    if _ACCEPT:
        PICTURES.mkdir(parents=True, exist_ok=True)
        (PICTURES / name).write_bytes(data)


def in_browser(visit: Callable[[], Any]) -> Any:
    """Run a test's visit; at most three minutes."""
    return asyncio.run(asyncio.wait_for(visit(), 180.0))
