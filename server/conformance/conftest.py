"""A server of the demo checkpoint on a free port, and what the tests ask it."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

KEY = "conformance-key"

# Checkpoints that are not in the repository lie beside it.
FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures"

TEMPLATE = """{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


class Server:
    """A running ntl-server; `flags` are those of its command line."""

    def __init__(self, *flags):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        command = [os.environ["NTL_SERVER"], "--port", "0", "--log-format", "json", *flags]
        self.process = subprocess.Popen(command, stderr=self.log)
        self.address = self.wait(self._address)
        self.url = f"http://{self.address}"
        self.wait(lambda: httpx.get(f"{self.url}/health/ready").status_code == 200)

    def logged(self):
        return Path(self.log.name).read_text()

    def _address(self):
        found = re.search(r'"address":"([^"]+)"', self.logged())
        return found and found.group(1)

    def wait(self, condition, seconds=60):
        """What `condition` says once it is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended: {self.logged()}")
            if value := condition():
                return value
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds} s: {condition}")

    def metrics(self):
        """All samples as {(name, sorted labels): value}."""
        text = httpx.get(f"{self.url}/metrics").text
        families = text_string_to_metric_families(text)
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    def metric(self, name, **labels):
        """The sum of all samples of a name with these labels."""
        wanted = labels.items()
        return sum(
            value for (found, having), value in self.metrics().items() if found == name and wanted <= dict(having).items()
        )

    def quiet(self):
        """Whether nothing is being answered."""
        return all(
            self.metric(gauge) == 0 for gauge in ("ntl_requests_in_flight", "ntl_queue_depth", "ntl_sequences_running")
        )

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def start():
    """Starts servers that end with the test."""
    servers = []

    def start(*flags):
        servers.append(Server(*flags))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server():
    """One server for all tests that leave it as it is, with an API key."""
    server = Server("--api-key", KEY)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def chatting(tmp_path_factory):
    """A server of a decoder-only checkpoint that has a chat template, called `llama`."""
    fixture = FIXTURES / "llama-ce"
    if not fixture.is_dir():
        pytest.skip(f"there is no {fixture}")
    folder = tmp_path_factory.mktemp("llama")
    for file in fixture.glob("*.*"):
        shutil.copy(file, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    server = Server("--model", f"llama={folder}", "--api-key", KEY)
    yield server
    server.stop()


@pytest.fixture
def report(capsys):
    """Prints a line of figures whatever pytest captures."""

    def report(**figures):
        with capsys.disabled():
            print(f"\n  {json.dumps(figures)}")

    return report


def slow_number(seed=0):
    """A request that takes seconds: the whole tree of a number."""
    number = {"tolerance": 1e-12, "nodes_max": 65536}
    return {"prompt": f"What is {100 + seed} - 20?", "number": number}
