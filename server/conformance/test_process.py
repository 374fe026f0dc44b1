"""The program: its configuration, its exit codes, its signals, and both versions of HTTP."""

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

from conftest import Server, slow_number

CHECKPOINT = Path(__file__).parents[2] / "models" / "tests" / "data" / "tiny" / "t5-ce"


def run(*flags, **environment):
    """Exit code and standard error of a server that is not expected to start."""
    command = [os.environ["NTL_SERVER"], *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, env=os.environ | environment)
    return ended.returncode, ended.stderr


def test_the_environment_comes_before_the_file_and_a_flag_before_both(tmp_path, monkeypatch):
    file = tmp_path / "server.toml"
    file.write_text('host = "192.0.2.1"\nport = 1\nqueue-max = 7\nlog-format = "compact"\n')
    monkeypatch.setenv("NTL_CONFIG", str(file))
    monkeypatch.setenv("NTL_HOST", "127.0.0.1")
    # `Server` gives --port and --log-format as flags.
    server = Server()
    server.stop()
    assert server.address.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("text", "message"),
    [("prot = 1", "`prot` in"), ("port = 70000", "70000"), ("port =", "is not valid TOML")],
)
def test_a_wrong_file_is_bad_usage_in_one_line(tmp_path, text, message):
    file = tmp_path / "server.toml"
    file.write_text(text)
    code, error = run("--config", str(file))
    assert code == 2 and message in error and len(error.splitlines()) == 1


def test_what_keeps_a_server_from_starting_is_said_in_one_line(tmp_path, server):
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    port = server.address.rsplit(":", 1)[1]
    for flags, expected, message in [
        (["--port", port], 1, "cannot listen on"),
        (["--port", "0", "--tls-cert", str(empty), "--tls-key", str(empty)], 1, "there is no certificate in"),
        (["--api-key-file", "/no/such/file"], 2, "cannot read API keys"),
        (["--api-key-file", str(empty)], 2, "there is no API key in"),
        (["--model", "x=/no/such/folder", "--port", "0", "--log", "error"], 1, "cannot load model `x`"),
    ]:
        code, error = run(*flags)
        assert code == expected and message in error and len(error.splitlines()) == 1, error


@pytest.mark.parametrize("command", ["--help", "--version", "openapi", "inspect"])
def test_a_reader_that_leaves_is_no_failure(command, tmp_path):
    flags = [command, str(CHECKPOINT)] if command == "inspect" else [command]
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([os.environ["NTL_SERVER"], *flags], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_server_whose_log_nobody_reads_any_more_serves_on():
    process = subprocess.Popen([os.environ["NTL_SERVER"], "--port", "0", "--log-format", "json"], stderr=subprocess.PIPE, text=True)
    try:
        address = re.search(r'"address":"([^"]+)"', process.stderr.readline()).group(1)
        process.stderr.close()
        with httpx.Client(base_url=f"http://{address}", timeout=60) as client:
            # While the server loads the model, it returns 503 and logs each rejection.
            end = time.monotonic() + 60
            while client.get("/health/ready").status_code != 200:
                assert time.monotonic() < end
                time.sleep(0.05)
            for body, status in (({"prompt": "x", "max_tokens": 1}, 200), ({"prompt": 5}, 400)):
                assert client.post("/v1/completions", json=body).status_code == status
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_three_lines_on_a_terminal_say_what_is_served_and_where_to_look():
    terminal, own = pty.openpty()
    process = subprocess.Popen([os.environ["NTL_SERVER"], "--port", "0"], stderr=own, stdin=subprocess.DEVNULL)
    os.close(own)
    try:
        text = ""
        while "/metrics" not in text:
            text += os.read(terminal, 4096).decode()
        lines = text.replace("\r", "").splitlines()
        first = next(index for index, line in enumerate(lines) if line.startswith("ntl-server "))
        assert "serves" in lines[first] and len(lines) >= first + 3
        urls = re.findall(r"http://\S+/\w*", "\n".join(lines[first : first + 3]))
        assert [url.rsplit("/", 1)[1] for url in urls] == ["", "docs", "metrics"]
        assert [httpx.get(url).status_code for url in urls] == [200] * 3
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_a_second_signal_ends_at_once_and_says_that_requests_were_cut_off(start):
    server = start()
    asked = threading.Thread(
        target=lambda: pytest.raises(httpx.TransportError, httpx.post, f"{server.url}/v1/completions",
                                     json=slow_number(), timeout=60)
    )
    asked.start()
    server.wait(lambda: server.metric("ntl_requests_in_flight") == 1)
    server.terminate()
    server.wait(lambda: httpx.get(f"{server.url}/health/ready").status_code == 503)
    assert httpx.get(f"{server.url}/health/live").status_code == 200
    began = time.monotonic()
    server.terminate()
    assert server.process.wait(10) == 1 and time.monotonic() - began < 2
    asked.join()


def test_prompts_are_logged_only_where_that_is_asked_for(start):
    for flags, is_told in [((), False), (("--log-prompts",), True), (("--log-prompts=false", "--log", "trace"), False)]:
        server = start(*flags)
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "a secret", "temperature": 0})
        server.wait(lambda: "POST /v1/completions" in server.logged())
        assert ("secret" in server.logged()) == is_told, flags


def test_http_2_is_spoken_without_tls_as_well(server):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    command = ["curl", "--silent", "--http2-prior-knowledge", "--include", f"{server.url}/health"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if answer.returncode == 2:
        pytest.skip("this curl has no HTTP/2")
    assert answer.stdout.startswith("HTTP/2 200") and "x-request-id: " in answer.stdout


def test_an_allocation_that_fails_ends_the_process_with_a_line(start, monkeypatch, tmp_path):
    """The server respects the limits of a cgroup; it does not see a limit on the address space (`ulimit -v`)."""
    small = tmp_path / "small"
    small.write_text(f'#!/bin/sh\nulimit -v 300000\nexec {os.environ["NTL_SERVER"]} "$@"\n')
    small.chmod(0o755)
    monkeypatch.setenv("NTL_SERVER", str(small))
    server = start()

    def ask(seed):
        with contextlib.suppress(httpx.HTTPError):
            httpx.post(f"{server.url}/v1/completions", json=slow_number(seed), timeout=60)

    threads = [threading.Thread(target=ask, args=[seed]) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.process.wait(timeout=20) == -signal.SIGABRT
    assert "memory allocation of" in server.logged()
