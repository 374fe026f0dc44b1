# One line each; `just --list` shows them. Without just, run the right-hand sides directly.

# Everything that a change has to pass.
check:
    scripts/check

# Licences, sources and versions of the dependencies, and whether each is used.
supply-chain:
    scripts/supply-chain

# All tests.
test:
    cargo test --locked

# Builds the server, starts it with the demo checkpoint, requests a number and stops it.
demo:
    scripts/demo

# Serves the embedded demo checkpoint on port 8000.
serve *ARGS:
    cargo run --release --package ntl-server -- {{ARGS}}

# Benchmarks of the parts, by criterion.
bench *ARGS:
    cargo bench --locked --package ntl-kernels --package ntl-bench {{ARGS}}

# ntl-bench compared with CTranslate2 and Hugging Face, in alternation.
bench-peers *ARGS:
    benchmarks/peers/run {{ARGS}}

# Packs the demo checkpoint from a folder.
pack-demo DIR:
    server/demo/pack.sh {{DIR}}

# Builds the image (FEATURES: cargo features; `cuda` builds on NVIDIA's images).
docker FEATURES="":
    docker build --build-arg FEATURES={{FEATURES}} --tag ntl-server .

# Builds the image, runs it, requests a number and stops it under load.
image-test *ARGS:
    scripts/image-test {{ARGS}}

# Builds a wheel of both programs and tests it in a fresh virtual environment.
wheel *ARGS:
    scripts/wheel {{ARGS}}

# Tests of the CPU kernels under AddressSanitizer.
sanitize:
    scripts/sanitize

# Kernels, golden tests and server on 64-bit ARM, emulated by QEMU.
arm-check:
    scripts/arm-check

# A CUDA toolkit to build with, without root and without a GPU; prints the environment to source.
cuda-toolchain:
    @scripts/cuda-toolchain

# Lints with CUDA; with --test builds and tests as well.
cuda-check *ARGS:
    scripts/cuda-check {{ARGS}}

# Compiles the kernels for all generations of GPUs; fails if one exceeds its registers.
kernel-registers:
    scripts/kernel-registers

# Tests of the device path, and its counts, on a fake driver.
fake-gpu-check:
    lab/fake-cuda/check

# Tests and figures on a GPU, and an archive of them; --quick takes a few minutes. Fails without a GPU.
gpu-check *ARGS:
    scripts/gpu-check {{ARGS}}

# Sends a release build the requests of other programs: OpenAI's client, schemathesis, Prometheus and others.
conformance *ARGS:
    server/conformance/run {{ARGS}}

# Compares numbers of the engines in NTL_ENGINES with native ones (server/conformance/README.md).
remote-check *ARGS:
    NTL_LM_EVAL= server/conformance/run test_remote.py {{ARGS}}

# Compares fields and shapes with those of the vLLM in NTL_ENGINES (server/conformance/README.md).
vllm-check *ARGS:
    NTL_LM_EVAL= server/conformance/run test_vllm.py {{ARGS}}

# A mixed load for MINUTES: prints the slopes of memory, descriptors and threads, and fails if memory grows.
soak MINUTES:
    NTL_LM_EVAL= NTL_SOAK_SECONDS="$(({{MINUTES}} * 60))" server/conformance/run test_soak.py

# Mutated inputs for a target of lab/fuzz/ for MINUTES, or for `all`; `guided` guides them by coverage.
fuzz TARGET MINUTES *GUIDED:
    lab/fuzz/run {{TARGET}} {{MINUTES}} {{GUIDED}}

# deepeval, inspect_ai and lm-evaluation-harness with ntl.integrations, against a server.
integrations *ARGS:
    python/integrations/test {{ARGS}}

# Compares GSM8K by ntl-eval with lm-evaluation-harness, item by item (eval/conformance/README.md).
conformance-eval DATA *ARGS:
    python3 eval/conformance/gsm8k.py --data {{DATA}} {{ARGS}}

# Compares lm-evaluation-harness over HTTP with its own Hugging Face backend (see the file).
conformance-lm-eval *FOLDERS:
    python3 server/conformance/lm_eval_beside_hf.py {{FOLDERS}}

# Compares the answers of both backends; NTL_SERVER is a build with --features mistralrs.
conformance-backends *FOLDERS:
    python3 server/conformance/backends.py {{FOLDERS}}

# The test of traces, in a build that sends them.
test-traces:
    cargo test --locked --package ntl-server --features otel --test traces

# The tests of the mistral.rs backend, which everyday builds do not compile.
test-mistralrs:
    scripts/test-mistralrs

# Writes the committed description of the API.
openapi:
    cargo run --package ntl-server -- openapi > docs/openapi.json

# Rewrites the table of metrics in docs/OPERATIONS.md.
metrics:
    NTL_REWRITE_DOCS=1 cargo test --locked --package ntl-server --test api table_of_metrics
