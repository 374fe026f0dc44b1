"""Real engines from NTL_ENGINES, a directory with a model and engines that serve it, as README.md describes.

An engine that runs already is used at NTL_VLLM_URL or NTL_LLAMA_CPP_URL; it has to compute in f32, as README.md says."""

import contextlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ENGINES = Path(os.environ.get("NTL_ENGINES") or "/nonexistent")
CONCURRENT = 4
# vLLM compiles for minutes on a small machine.
START_SECONDS = 1800


def model():
    """The directory of the model that the engines serve."""
    folder = ENGINES / "model"
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"NTL_ENGINES names no directory with a model: {ENGINES}")
    return folder


def engine(name, *options):
    """A context with the URL of an engine. It starts one with these options unless one runs already."""
    url = os.environ.get(f"NTL_{name.upper()}_URL")
    return contextlib.nullcontext(url) if url else {"llama_cpp": llama_cpp, "vllm": vllm}[name](*options)


def llama_cpp(*options):
    program = next(ENGINES.glob("**/bin/llama-server"), None)
    if not program or not (ENGINES / "model.gguf").is_file():
        pytest.skip(f"NTL_ENGINES has no bin/llama-server and model.gguf: {ENGINES}")
    slots = ["-c", 2048 * CONCURRENT, "--parallel", CONCURRENT, "--threads", 1, "--poll", 0]
    # Its flash attention and its keys and values are in half precision otherwise.
    precise = ["--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32"]
    return running([program, "-m", ENGINES / "model.gguf", *slots, *precise, *options], "/health")


def vllm(*options):
    program = ENGINES / "vllm" / "bin" / "vllm"
    if not program.is_file():
        pytest.skip(f"there is no {program}")
    common = ["--dtype", "float32", "--enforce-eager", "--max-model-len", 2048, "--block-size", 32, "--served-model-name", "model"]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(os.cpu_count())}
    return running([program, "serve", model(), *common, *options], "/health", **environment)


@contextlib.contextmanager
def running(command, path, **environment):
    """An engine on a free port, which ends afterwards."""
    port = free_port()
    command = [str(word) for word in [*command, "--port", port]]
    log = subprocess.DEVNULL
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            assert process.poll() is None and time.monotonic() < end, f"{command[0]} did not start"
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").status == 200:
                    break
            time.sleep(1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def free_port():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return listener.getsockname()[1]
