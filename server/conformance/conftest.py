"""A server of the demo checkpoint on a free port, and helpers that send requests to it."""

import json
import shutil
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import served

KEY = "conformance-key"

# Checkpoints outside the repository are next to it.
FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures"

TEMPLATE = """{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


class Server(served.Server):
    """A running ntl-server whose metrics are read as Prometheus reads them."""

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
        wanted = labels.items()
        return sum(
            value for (found, having), value in self.metrics().items() if found == name and wanted <= dict(having).items()
        )


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
    """A request that takes seconds: a large tree of a number that the demo checkpoint can only guess."""
    number = {"tolerance": 1e-12, "nodes_max": 65536}
    return {"prompt": f"About how many beans are in {100 + seed} buckets?", "number": number}
