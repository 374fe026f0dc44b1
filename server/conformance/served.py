"""A running ntl-server on a free port. Standard library only, so that every environment can start one."""

import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

GAUGES = ("ntl_requests_in_flight", "ntl_queue_depth", "ntl_sequences_running")


class Server:
    """Starts a server with these flags and waits up to `seconds` until it is ready. `program` defaults to NTL_SERVER, `port`
    to any free one."""

    def __init__(self, *flags, program=None, seconds=60, port=0):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        program = program or os.environ.get("NTL_SERVER", "ntl-server")
        command = [program, "--port", str(port), "--log-format", "json", *flags]
        began = time.monotonic()
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stderr=self.log)
        self.address = self.wait(self._address, seconds)
        self.url = f"http://{self.address}"
        self.wait(lambda: self.status("/health/ready") == 200, seconds)
        self.start_seconds = time.monotonic() - began

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def logged(self):
        return Path(self.log.name).read_text()

    def _address(self):
        found = re.search(r'"address":"([^"]+)"', self.logged())
        return found and found.group(1)

    def wait(self, condition, seconds=60):
        """Waits until `condition` returns a true value, and returns it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended: {self.logged()}")
            if value := condition():
                return value
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds} s: {condition}")

    def status(self, path):
        """Returns the status of a route."""
        try:
            with urllib.request.urlopen(self.url + path) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def metric(self, name, **labels):
        """The sum of all samples of a name with these labels."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        samples = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        return sum(float(value) for having, value in samples if wanted <= set(having.split(",")))

    def quiet(self):
        """Returns whether the server is idle."""
        return all(self.metric(gauge) == 0 for gauge in GAUGES)

    def peak_mebibytes(self):
        """The most memory that the process has held (VmHWM)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 1024

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
