"""A headless Chromium, driven through chromedriver's own HTTP protocol (W3C WebDriver).

The packages are Debian's chromium and chromium-driver. Everything that the page complains about is
kept: errors of its scripts, refused requests and violations of its content security policy.
"""

import base64
import http.client
import json
import os
import shutil
import signal
import subprocess

from cluster import _die_with_the_test, free_port, wait_for

CHROMIUM = shutil.which("chromium")
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--mute-audio"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
COMMAND_TIMEOUT_S = 60


class Browser:
    def __init__(self):
        if not CHROMIUM or not CHROMEDRIVER:
            raise RuntimeError("chromium is missing: apt-get install chromium chromium-driver")
        self.port = free_port()
        self.session = None
        self.driver = subprocess.Popen(
            [CHROMEDRIVER, f"--port={self.port}", "--log-level=SEVERE"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_the_test,
        )
        try:
            self.begin()
        except BaseException:
            self.close()
            raise

    def begin(self):
        wait_for("chromedriver", lambda: self.call("GET", "/status")["ready"])
        options = {"binary": CHROMIUM, "args": FLAGS}
        logging = {"browser": "ALL"}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": logging}
        made = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{made['sessionId']}"

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=COMMAND_TIMEOUT_S)
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body))
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(f"{method} {path}: {value['error']}: {value['message']}")
        return value

    def post(self, path, **body):
        return self.call("POST", self.session + path, body)

    def cdp(self, command, **parameters):
        """A command of the DevTools protocol."""
        return self.post("/goog/cdp/execute", cmd=command, params=parameters)

    def open(self, url):
        self.post("/url", url=url)

    def run(self, script, *arguments):
        """What the function body `script` returns."""
        return self.post("/execute/sync", script=script, args=list(arguments))

    def wait(self, what, script, *arguments):
        return wait_for(f"the page: {what}", lambda: self.run("return " + script, *arguments))

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def complaints(self):
        """What the browser's console has said since the last look."""
        return [entry["message"] for entry in self.post("/se/log", type="browser")]

    def look(self, width, height, dark=False, scale=1):
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", self.session + "/screenshot")))

    def close(self):
        try:
            if self.session:
                self.call("DELETE", self.session)
        finally:
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait()
