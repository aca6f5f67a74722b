"""Chromium without a window, driven over its own protocol (CDP): only what these tests need."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_S = 30.0
ANSWER_S = 30.0


def found() -> str | None:
    """Where Chromium is: `KVGATE_CHROMIUM`, else by its names in PATH."""
    named = os.environ.get("KVGATE_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.said: list[str] = []
        """Errors on the console, exceptions, and what a content security policy stopped."""
        self.asked: list[str] = []
        """Every URL that was requested."""
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if (waiter := self._answers.pop(told.get("id"), None)) is not None:
                if "error" in told:
                    waiter.set_exception(RuntimeError(told["error"]["message"]))
                else:
                    waiter.set_result(told["result"])
                continue
            match told.get("method"):
                case "Runtime.exceptionThrown":
                    self.said.append(json.dumps(told["params"]["exceptionDetails"])[:500])
                case "Log.entryAdded" if told["params"]["entry"]["level"] == "error":
                    self.said.append(told["params"]["entry"]["text"])
                case "Network.requestWillBeSent":
                    self.asked.append(told["params"]["request"]["url"])

    async def call(self, method: str, **params: Any) -> Any:
        """One command of the protocol."""
        ident = next(self._ids)
        waiter = self._answers[ident] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": ident, "method": method, "params": params})
        async with asyncio.timeout(ANSWER_S):
            return await waiter

    async def begin(self) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def looks(
        self, *, width: int, height: int, dark: bool = False, phone: bool = False, scale: float = 1
    ) -> None:
        """Size of the window, colour scheme, and whether it is a phone."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme, still])

    async def go(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        got = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in got:
            raise AssertionError(json.dumps(got["exceptionDetails"])[:800])
        return got["result"].get("value")

    async def until(self, condition: str, within_s: float = 40.0) -> None:
        """Return once the expression is true."""
        try:
            async with asyncio.timeout(within_s):
                while not await self._holds(condition):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            msg = f"not within {within_s} s: {condition}; {self.said}"
            raise AssertionError(msg) from None

    async def _holds(self, condition: str) -> bool:
        """Whether it is true; while a page is being loaded its parts may not be there."""
        try:
            return bool(await self.run(condition))
        except AssertionError:
            return False

    async def shoot(self, path: Path, *, whole: bool = True) -> None:
        got = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(got["data"]))

    async def close(self) -> None:
        self._reader.cancel()
        await self._socket.close()


@contextlib.asynccontextmanager
async def chromium(folder: Path, *, language: str = "en") -> AsyncIterator[Tab]:
    """A browser of its own with one empty page; gone afterwards."""
    program = found()
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        program,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-extensions",
        f"--accept-lang={language}",
        f"--lang={language}",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port = folder / "DevToolsActivePort"
        async with asyncio.timeout(START_S):
            while not port.is_file() or len(port.read_text().split()) < 2:
                await asyncio.sleep(0.05)
        url = f"http://127.0.0.1:{port.read_text().split()[0]}/json"
        async with aiohttp.ClientSession() as http:
            targets: list[Any] = []
            async with asyncio.timeout(START_S):
                while not targets:
                    async with http.get(url) as answer:
                        targets = [one for one in await answer.json() if one["type"] == "page"]
            async with http.ws_connect(
                targets[0]["webSocketDebuggerUrl"], max_msg_size=0
            ) as socket:
                tab = Tab(socket)
                await tab.begin()
                try:
                    yield tab
                finally:
                    await tab.close()
    finally:
        if process.returncode is None:
            process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
