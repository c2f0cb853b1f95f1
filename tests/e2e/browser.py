# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over its DevTools protocol with the standard library alone.

Commands go through two pipes (--remote-debugging-pipe), one JSON document each and a zero byte
after it: no port, no WebSocket. Everything the page throws or writes to its console is collected,
because "no errors" is one of the things to test.
"""

import base64
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which(
    "google-chrome")
PATIENCE = 300


class Browser:
    """One process with one page; `errors` holds exceptions and console errors, as text."""

    def __init__(self, width=1280, height=900, dark=False):
        self.profile = tempfile.TemporaryDirectory(prefix="whet-browser-",
                                                   ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                   "--disable-dev-shm-usage", "--disable-background-networking",
                   "--disable-component-update", "--disable-extensions", "--hide-scrollbars",
                   "--force-color-profile=srgb", "--remote-debugging-pipe",
                   "--user-data-dir=" + self.profile.name, "about:blank"]
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        shell = f'exec 3<&{to_read} 4>&{back_write}; exec "$@"'
        self.process = subprocess.Popen(["bash", "-c", shell, "chromium"] + command,
                                        pass_fds=(to_read, back_write), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(back_write)
        self.errors, self.answers, self.next_id = [], {}, 1
        self.came = threading.Condition()
        self.events = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.session = None
        page = next(t for t in self.command("Target.getTargets")["targetInfos"]
                    if t["type"] == "page")
        self.session = self.command("Target.attachToTarget", targetId=page["targetId"],
                                    flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.command(domain + ".enable")
        self.resize(width, height)
        self.scheme(dark)

    def _listen(self):
        rest = b""
        while piece := os.read(self.back, 1 << 16):
            *whole, rest = (rest + piece).split(b"\0")
            for text in whole:
                self._take(json.loads(text))

    def _take(self, message):
        if "id" in message:
            with self.came:
                self.answers[message["id"]] = message
                self.came.notify_all()
            return
        method, p = message["method"], message.get("params", {})
        if method == "Runtime.exceptionThrown":
            d = p["exceptionDetails"]
            self.errors.append(d.get("exception", {}).get("description", d["text"]))
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "assert", "warning"):
            self.errors.append(" ".join(str(a.get("value", a.get("description")))
                                        for a in p["args"]))
        elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.errors.append(p["entry"]["text"] + " " + p["entry"].get("url", ""))

    def command(self, method, **params):
        """One protocol command; its result."""
        number, self.next_id = self.next_id, self.next_id + 1
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        with self.came:
            assert self.came.wait_for(lambda: number in self.answers, PATIENCE), method
            answer = self.answers.pop(number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    # ---- the page ---------------------------------------------------------------------------

    def open(self, url):
        self.command("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, width, height):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height,
                     deviceScaleFactor=1, mobile=width < 500)

    def scheme(self, dark):
        self.command("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def value(self, expression):
        """What a JavaScript expression (or a promise of it) gives, as Python data."""
        r = self.command("Runtime.evaluate", expression=expression, returnByValue=True,
                         awaitPromise=True)
        assert "exceptionDetails" not in r, (expression, r["exceptionDetails"])
        return r["result"].get("value")

    def wait(self, expression, patience=PATIENCE):
        """Until the expression is true; returns its value (true for an element)."""
        end = time.time() + patience
        plain = f"((v) => v instanceof Node ? true : v)({expression})"
        while not (v := self.value(plain)):
            assert time.time() < end, f"never true: {expression}"
            time.sleep(0.05)
        return v

    def text(self, selector):
        where = json.dumps(selector)
        return self.value(f"(document.querySelector({where}) || {{}}).innerText || ''")

    def click(self, selector):
        """Clicks with the mouse where the element is, as a person would: again, if the page moved it
        away or replaced it meanwhile. The button is let go of only where it was meant to be pressed."""
        where, end = json.dumps(selector), time.time() + PATIENCE
        while True:
            at = self.value(f"""(() => {{
                const e = document.querySelector({where});
                e.scrollIntoView({{block: 'center'}});
                window.clickHit = false;
                document.addEventListener('click', (c) => {{
                    window.clickHit = c.target.closest({where}) !== null;
                }}, {{capture: true, once: true}});
                const r = e.getBoundingClientRect();
                return [r.left + r.width / 2, r.top + r.height / 2];
            }})()""")
            self._mouse("mousePressed", *at)
            if not self.value(f"document.querySelector({where}).matches(':active')"):
                at = (0, 0)
            self._mouse("mouseReleased", *at)
            if self.value("window.clickHit"):
                return
            assert time.time() < end, f"cannot be clicked: {selector}"

    def _mouse(self, kind, x, y):
        self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        self.command("Input.insertText", text=text)

    def press(self, key, code=0):
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                         windowsVirtualKeyCode=code, text="\r" if key == "Enter" else "")

    def screenshot(self, path, whole=True):
        """A PNG of the whole page, or of what the window shows."""
        png = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as f:
            f.write(base64.b64decode(png["data"]))

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        self.profile.cleanup()
