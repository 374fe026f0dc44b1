"""Metrics as Prometheus sees them, after work and after errors."""

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families

HEADERS = {"authorization": "Bearer conformance-key"}

DEPLOY = Path(__file__).parents[2] / "deploy"

# Metrics that only a server with a model on another engine or on a GPU has.
ELSEWHERE = re.compile("ntl_(upstream|gpu)_")

# Names from the table of metrics, which a test in Rust compares with the code.
FIXED = re.findall(r"^\| `(ntl_\w+)`", (DEPLOY.parent / "docs" / "OPERATIONS.md").read_text(), re.MULTILINE) + [
    "process_resident_memory_bytes", "process_open_fds", "process_max_fds", "process_cpu_seconds_total",
]


def tool(name):
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed (apt-get install prometheus)")
    return name


@pytest.fixture(scope="module", autouse=True)
def load(server):
    """Every kind of answer."""
    with httpx.Client(base_url=server.url, headers=HEADERS) as client:
        for body in (
            {"prompt": "Add 3 and 4."},
            {"prompt": "Add 3 and 4.", "stream": True, "temperature": 0},
            {"prompt": ["Add 3 and 4.", "Add 5 and 6."], "number": True},
            {"prompt": "x", "number": {"method": "sample", "nodes_max": 5}},
            {"prompt": "x", "temperature": -1},
            {"prompt": "x", "model": "other"},
        ):
            client.post("/v1/completions", json=body)
        for path in ("/nothing", "/v1/completions", "/v1/models/a/b"):
            client.get(path)
        client.post("/v1/completions", content=b"{")
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})


def test_promtool_finds_nothing_to_criticise(server):
    text = httpx.get(f"{server.url}/metrics").text
    check = subprocess.run([tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
    assert check.returncode == 0 and not check.stdout + check.stderr, check.stdout + check.stderr


def test_all_names_of_the_contract_are_there(server):
    text = httpx.get(f"{server.url}/metrics").text
    missing = {name for name in FIXED if f"# TYPE {name} " not in text}
    assert len(FIXED) > 20 and all(ELSEWHERE.search(name) for name in missing), missing


def test_openmetrics_is_understood_and_says_the_same(server):
    answer = httpx.get(f"{server.url}/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in openmetrics_families(answer.text)
        for sample in family.samples
    }
    # Text and OpenMetrics write bucket bounds differently.
    plain = lambda keys: {name for name, _ in keys}
    assert plain(samples) == plain(server.metrics())


def test_series_do_not_grow_with_what_clients_think_of(server):
    with httpx.Client(base_url=server.url, headers=HEADERS) as client:
        def ask(first, last):
            for k in range(first, last):
                client.get(f"/nothing/{k}")
                client.get(f"/v1/models/m{k}")
                client.post("/v1/completions", json={"prompt": "x", "model": f"m{k}"})
                client.request(f"METHOD{k}", "/health")

        ask(0, 10)
        before = len(server.metrics())
        ask(10, 300)
        assert len(server.metrics()) == before


class Prometheus:
    """A Prometheus that scrapes a server each second, with the rules of deploy/."""

    def __init__(self, server, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/api/v1"
        config = folder / "prometheus.yml"
        config.write_text(
            f"global: {{evaluation_interval: 1s}}\nrule_files: ['{DEPLOY}/prometheus/rules.yml']\nscrape_configs:\n"
            f"- {{job_name: ntl-server, scrape_interval: 1s, static_configs: [{{targets: ['{server.address}']}}]}}\n"
        )
        flags = [f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
        with open(folder / "log", "w") as log:
            self.process = subprocess.Popen([tool("prometheus"), *flags], stderr=log, stdout=log)

    def query(self, expression):
        """The values of an instant query; none while Prometheus starts."""
        try:
            answer = httpx.get(f"{self.url}/query", params={"query": expression})
        except httpx.TransportError:
            return []
        # Prometheus answers 503 while it starts.
        if answer.status_code == 503:
            return []
        assert answer.status_code == 200, f"{expression}: {answer.text}"
        return [float(result["value"][1]) for result in answer.json()["data"]["result"]]

    def rules(self):
        groups = httpx.get(f"{self.url}/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def stop(self):
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def prometheus(server, tmp_path):
    prometheus = Prometheus(server, tmp_path)
    yield prometheus
    prometheus.stop()


def test_a_prometheus_scrapes_it(server, prometheus, report):
    server.wait(lambda: prometheus.query("up == 1"), seconds=60)
    server.wait(lambda: prometheus.query("ntl_engine_up") == [1.0], seconds=30)
    assert prometheus.query('sum(ntl_finished_total{reason="stop"})')[0] >= 4
    names = httpx.get(f"{prometheus.url}/label/__name__/values").json()["data"]
    server.wait(lambda: prometheus.query("scrape_samples_scraped > 100"), seconds=30)
    series = int(prometheus.query("scrape_samples_scraped")[0])
    report(series=series, names=sum(name.startswith("ntl_") for name in names))


def test_every_query_of_the_dashboard_returns_data(server, prometheus, report):
    board = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    shown = {target["expr"] for panel in board["panels"] for target in panel.get("targets", [])}
    queries = {query for query in shown if not ELSEWHERE.search(query)}
    server.wait(lambda: prometheus.query("up == 1"), seconds=60)

    def missing():
        """The queries without a sample, after more work."""
        with httpx.Client(base_url=server.url, headers=HEADERS, timeout=60) as client:
            client.post("/v1/completions", json={"prompt": "What is 12 + 30?", "temperature": 0})
            client.post("/v1/completions", json={"prompt": "What is 12 + 30?", "number": True})
        filled = {query: query.replace("$__rate_interval", "20s").replace("$model", ".*").replace("$job", ".*") for query in queries}
        assert not any("$" in query for query in filled.values())
        return {query for query, own in filled.items() if not prometheus.query(own)}

    try:
        server.wait(lambda: not missing(), seconds=60)
    except AssertionError:
        assert missing() == set()
    # Variables of the dashboard come from labels of these.
    assert prometheus.query("ntl_model_info") == [1.0] and prometheus.query("ntl_build_info") == [1.0]
    report(dashboard_queries=len(queries))


def test_the_rules_are_evaluated_and_a_healthy_server_raises_no_alert(server, prometheus):
    server.wait(lambda: prometheus.query("up == 1"), seconds=60)
    server.wait(lambda: prometheus.query("ntl:requests:rate5m"), seconds=60)
    server.wait(lambda: all(rule["health"] == "ok" for rule in prometheus.rules()), seconds=30)
    rules = prometheus.rules()
    assert len(rules) > 10
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []


def test_each_alert_has_a_case_and_fires_in_it():
    checked = subprocess.run([tool("promtool"), "test", "rules", "tests.yml"], cwd=DEPLOY / "prometheus", capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    tests = yaml.safe_load((DEPLOY / "prometheus" / "tests.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    fired = {case["alertname"] for test in tests["tests"] for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert alerts == fired
