"""A real Chromium without a screen, spoken to through its debugging pipe; nothing but the standard library."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from shutil import which
from threading import Thread
from time import monotonic, sleep
from typing import Any

__all__ = ["Chromium", "chromium"]

_SECONDS = 300.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


class Chromium:
    """One page."""

    def __init__(self, outgoing: int, incoming: int) -> None:
        self.requests: list[str] = []  # what the page has asked for
        self.complaints: list[str] = []  # errors and warnings of its console
        self._outgoing = outgoing
        self._incoming = incoming
        self._answers: Queue[dict[str, Any]] = Queue()
        self._number = 0
        self._session: str | None = None
        self._reading = Thread(target=self._read, name="chromium", daemon=True)
        self._reading.start()
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the debugging protocol, and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._outgoing, json.dumps(message).encode() + b"\0")
        deadline = monotonic() + _SECONDS
        while True:
            answer = self._answers.get(timeout=max(0.1, deadline - monotonic()))
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                found: dict[str, Any] = answer["result"]
                return found

    def end(self) -> None:
        self._session = None
        self("Browser.close")
        self._reading.join(timeout=300)

    def size(self, width: int, height: int, phone: bool = False, dark: bool = False) -> None:
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        self("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def script(self, expression: str) -> Any:
        """What it comes to."""
        found = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["text"])
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 300) -> None:
        """Waits until it is true."""
        deadline = monotonic() + seconds
        while not self.script(f"!!({expression})"):
            if monotonic() > deadline:
                raise TimeoutError(
                    f"never came true: {expression}; the page says {self.script('document.body.innerText')[:2000]}"
                )
            sleep(0.1)

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path, height: int = 10_000, start: str = "body", end: str | None = None) -> None:
        """The page as a PNG, from the top of one element to that of another; at most `height` of it."""
        metrics = self("Page.getLayoutMetrics")["cssContentSize"]
        top = self._find_top(start)
        bottom = metrics["height"] if end is None else self._find_top(end)
        shown = min(height, bottom - top)
        clip = {"x": 0, "y": top, "width": metrics["width"], "height": shown, "scale": 1}
        found = self(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True, optimizeForSpeed=False
        )
        path.write_bytes(base64.b64decode(found["data"]))

    def _find_top(self, selector: str) -> float:
        place = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().top"
        return float(self.script(f"{place} + scrollY"))

    def _read(self) -> None:
        waiting = b""
        while data := os.read(self._incoming, 1 << 16):
            *whole, waiting = (waiting + data).split(b"\0")
            for message in whole:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.complaints.append(str(parameters["entry"]))
            case None:
                self._answers.put(message)


@contextmanager
def chromium() -> Iterator[Chromium]:
    """Ended with its folder when the block ends."""
    program = which("chromium") or which("chromium-browser") or which("google-chrome")
    if program is None:
        raise FileNotFoundError("browser tests need Chromium: apt-get install -y chromium")
    to_browser, from_us = os.pipe()
    from_browser, to_us = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # The browser reads from its descriptor 3 and writes to 4.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{to_us}'
        running = subprocess.Popen(
            ["bash", "-c", command, program, *_FLAGS, f"--user-data-dir={folder}"],
            pass_fds=(to_browser, to_us),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(to_us)
        browser = Chromium(from_us, from_browser)
        try:
            yield browser
        finally:
            browser.end()  # by itself: its helpers end with it, and leave its folder alone
            running.wait(timeout=300)
            os.close(from_us)
            os.close(from_browser)
