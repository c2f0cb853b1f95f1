# SPDX-License-Identifier: Apache-2.0
"""The pictures of scripts/make-screenshots: a server, its load, a browser, five PNGs."""

import os
import random
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))

from browser import Browser  # noqa: E402
from conftest import Server  # noqa: E402

PROMPTS = ["The history of bread begins", "Once upon a time there was a blacksmith who",
           "Write a short letter to a friend about the sea:", "def fibonacci(n):"]
# name, width, height, dark; a phone's picture is of its first screens.
PICTURES = [("light", 1280, 1560, False), ("dark", 1280, 1560, True), ("phone", 390, 1560, True)]
MOST_BYTES = 200 * 1024
KEY = "screenshots"


def client(server, done):
    while not done.is_set():
        server.complete(random.choice(PROMPTS), max_tokens=random.randint(60, 160),
                        temperature=0.7, ignore_eos=True)


def keep(browser, folder, name):
    path = os.path.join(folder, f"dashboard-{name}.png")
    browser.screenshot(path, whole=False)
    subprocess.run(["pngquant", "--force", "--ext", ".png", "64", path], check=True)
    size = os.path.getsize(path)
    assert size < MOST_BYTES, f"{path} has {size} bytes"
    print(f"{path}: {size // 1024} KiB")


def show(browser, server, width, height, dark):
    browser.resize(width, height)
    browser.scheme(dark)
    browser.open(server.url + "/dashboard")
    browser.wait("/last 1\\d.s/.test(document.getElementById('step-note').textContent)")


def show_kernel(browser):
    """An active kernel's source and build log, which take the admin key."""
    button = ("[...document.querySelectorAll('tr.more .actions button')]"
              ".find((b) => b.textContent === 'Source and build log' && b.checkVisibility())")
    browser.click("#slots-table tr:has(.tag.good) button.bare")
    browser.wait(button)
    browser.value(button + ".click()")
    browser.wait("document.getElementById('key-dialog').open")
    browser.type(KEY)
    browser.press("Enter", 13)
    browser.wait("document.getElementById('kernel-dialog').open")
    browser.wait("document.getElementById('said').hidden")


def take(server, folder):
    browser = Browser()
    try:
        for name, width, height, dark in PICTURES:
            show(browser, server, width, height, dark)
            keep(browser, folder, name)
        show(browser, server, 1280, 1130, False)
        browser.value("document.querySelector('.two').scrollIntoView()")
        keep(browser, folder, "search")
        browser.resize(1280, 900)
        show_kernel(browser)
        keep(browser, folder, "kernel")
        assert browser.errors == [], browser.errors
    finally:
        browser.close()


def main():
    tempfile.tempdir = "/var/tmp"  # the build log in a picture shows where the store is
    with tempfile.TemporaryDirectory() as folder:
        key = os.path.join(folder, "key")
        with open(key, "w") as f:
            f.write(KEY + "\n")
        server = Server("--specializer-enabled=true", f"--server-admin-key-file={key}")
        try:
            done = threading.Event()
            clients = [threading.Thread(target=client, args=(server, done)) for _ in range(2)]
            for c in clients:
                c.start()
            done.wait(60 * float(sys.argv[1]))
            try:
                take(server, os.path.join(ROOT, "docs"))
            finally:
                done.set()
                for c in clients:
                    c.join()
        finally:
            server.stop()


if __name__ == "__main__":
    main()
