"""Metrics as Prometheus sees them, after work and after errors."""

import shutil
import socket
import subprocess
import time

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families

HEADERS = {"authorization": "Bearer conformance-key"}

FIXED = """
    ntl_requests_total ntl_requests_in_flight ntl_requests_rejected_total ntl_queue_depth ntl_sequences_running
    ntl_request_duration_seconds ntl_queue_duration_seconds ntl_time_to_first_token_seconds
    ntl_inter_token_latency_seconds ntl_prompt_tokens_total ntl_generation_tokens_total ntl_finished_total
    ntl_batch_rows ntl_number_decodes_total ntl_number_mass_closed ntl_number_nodes ntl_number_std ntl_model_info
    ntl_build_info ntl_engine_up ntl_panics_total process_resident_memory_bytes process_open_fds
    process_cpu_seconds_total
""".split()


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
    assert [name for name in FIXED if f"# TYPE {name} " not in text] == []


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


def test_a_prometheus_scrapes_it(server, tmp_path, report):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "scrape_configs:\n"
        f"- {{job_name: ntl, scrape_interval: 1s, static_configs: [{{targets: ['{server.address}']}}]}}\n"
    )
    flags = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with open(tmp_path / "log", "w") as log:
        prometheus = subprocess.Popen([tool("prometheus"), *flags], stderr=log, stdout=log)
    try:
        def query(expression):
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": expression})
            except httpx.TransportError:
                return []
            # Prometheus answers 503 while it starts.
            if answer.status_code == 503:
                return []
            return [float(result["value"][1]) for result in answer.json()["data"]["result"]]

        server.wait(lambda: query("up == 1"), seconds=60)
        server.wait(lambda: query("ntl_engine_up") == [1.0], seconds=30)
        assert query('sum(ntl_finished_total{reason="stop"})')[0] >= 4
        names = httpx.get(f"http://127.0.0.1:{port}/api/v1/label/__name__/values").json()["data"]
        time.sleep(1.5)
        assert query("scrape_samples_scraped")[0] > 100
        report(series=int(query("scrape_samples_scraped")[0]), names=sum(name.startswith("ntl_") for name in names))
    finally:
        prometheus.terminate()
        prometheus.wait()
