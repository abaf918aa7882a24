"""A headless Chromium, driven through its DevTools protocol over two pipes: no driver, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # which root and most containers have to do without; it opens none but our own pages
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
)
ANSWER_S = 60.0

LAUNCHER = """
import os, sys
commands, answers = (os.dup(int(number)) for number in sys.argv[1:3])
for number, place in (commands, 3), (answers, 4):
    os.dup2(number, place)
    os.set_inheritable(place, True)  # which it is not where it was there already
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The protocol is spoken on the descriptors 3 and 4."""


def find_browser() -> str | None:
    """The path of a browser of Chromium's kind, where it can be driven: Windows lends no descriptors."""
    if os.name == "nt":
        return None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a headless browser; `problems` is what it complains of, `fetched` what it asks for."""

    def __init__(self, program: str, folder: Path) -> None:
        """Start it with a fresh profile in `folder`."""
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        launch = [sys.executable, "-c", LAUNCHER, str(commands), str(answers)]
        with (folder / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*launch, program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
                pass_fds=(commands, answers),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.problems: list[str] = []
        self.fetched: list[str] = []
        page = next(
            target for target in self.call("Target.getTargets")["targetInfos"] if target["type"] == "page"
        )
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(timeout=20)
        except Exception:
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._write)
            os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Do what a method of the protocol does, and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path) -> None:
        """Load a file, and wait until it has run."""
        self._loaded = False
        self.call("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._receive()

    def show(self, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Take on a window's width in CSS pixels, and a colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key, by its name and Windows key code."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text
            )

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save what is seen, or the whole page, as a PNG file."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _receive(self) -> dict[str, Any]:
        """The next message; what it says about the page is noted."""
        deadline_s = time.monotonic() + ANSWER_S
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                raise TimeoutError(f"the browser was silent for {ANSWER_S:.0f} s")
            data = os.read(self._read, 1 << 16)
            if not data:
                raise RuntimeError(f"the browser has gone: {self._process.poll()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, values: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(values["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(f"console.{values['type']}: {values['args']}")
        elif method == "Log.entryAdded":
            self.problems.append(f"{values['entry']['level']}: {values['entry']['text']}")
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {values['message']}")
        elif method == "Network.requestWillBeSent":
            self.fetched.append(values["request"]["url"])
