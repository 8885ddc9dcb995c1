"""A headless Chromium, driven over its DevTools protocol through a pipe: nothing to install beside the browser."""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
# Chromium reads commands from descriptor 3 and answers on 4.
LAUNCHER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
    os.close(end)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page. A context manager."""

    def __init__(self, profile):
        inward, self._to = os.pipe()
        self._from, outward = os.pipe()
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        command = [BINARY, *arguments, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(inward), str(outward), *command],
            pass_fds=(inward, outward),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(inward)
        os.close(outward)
        self._number, self._rest, self._session = 0, b"", None
        self.problems = []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._session = None
        self.send("Browser.close")
        self._process.wait(10)
        os.close(self._to)
        os.close(self._from)

    def send(self, method, **params):
        """One command, and its answer; what the page complains of meanwhile is kept in `problems`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") == "Runtime.exceptionThrown":
                self.problems.append(answer["params"]["exceptionDetails"])
            if answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.problems.append(answer["params"]["entry"])

    def _read(self):
        while b"\0" not in self._rest:
            more = os.read(self._from, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        first, _, self._rest = self._rest.partition(b"\0")
        return json.loads(first)

    def look(self, width=1280, height=900, dark=False, phone=False):
        """How wide the window is, and which colours the reader prefers."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.send("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address):
        self.problems.clear()
        self.send("Page.navigate", url=address)
        self.wait("document.body?.dataset.drawn >= '1'")

    def run(self, script):
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition, seconds=60):
        until = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < until, f"never: {condition}"
            time.sleep(0.05)

    def press(self, key, code=0):
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    def picture(self, path, whole=False):
        image = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(image))
