# syntax=docker/dockerfile:1
#
#     docker build -t ntl-server .
#     docker run --rm -p 8000:8000 -v /path/to/checkpoint:/model:ro ntl-server --model t5=/model
#
# With CUDA, on a GPU of the host:
#
#     docker build --build-arg FEATURES=cuda -t ntl-server:cuda .
#     docker run --rm --gpus all -p 8000:8000 -v /path/to/checkpoint:/model:ro ntl-server:cuda --model t5=/model
#
# FEATURES are cargo features of ntl-server. BASE is what it is built and run on, `cpu`, `otel` (the same) or `cuda`; where
# FEATURES is not one of these, such as `cuda,otel`, it has to be said. Kernels are for GPUs of CUDA_COMPUTE_CAP (80: Ampere) and
# later; from 90 on for that one only.
ARG FEATURES=""
ARG BASE=${FEATURES:-cpu}
ARG RUST_IMAGE=rust:1.95-bookworm
ARG CUDA_VERSION=13.0.1
ARG CUDA_OS=ubuntu24.04

FROM ${RUST_IMAGE} AS toolchain-cpu
FROM toolchain-cpu AS toolchain-otel
FROM nvidia/cuda:${CUDA_VERSION}-devel-${CUDA_OS} AS toolchain-cuda
ENV RUSTUP_HOME=/usr/local/rustup CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:$PATH
COPY --from=toolchain-cpu /usr/local/rustup /usr/local/rustup
COPY --from=toolchain-cpu /usr/local/cargo /usr/local/cargo
ARG CUDA_COMPUTE_CAP=80
ENV CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP}

FROM debian:bookworm-slim AS base-cpu
FROM base-cpu AS base-otel
# Beside the driver, which comes from the host, these two are all that is linked.
FROM nvidia/cuda:${CUDA_VERSION}-base-${CUDA_OS} AS base-cuda
RUN version="$(echo "${NV_CUDA_CUDART_VERSION:-13.0}" | cut -d. -f1,2 | tr . -)" \
    && apt-get update \
    && apt-get install --yes --no-install-recommends "libcublas-$version" "libcurand-$version" \
    && rm -rf /var/lib/apt/lists/*

# Manifests only, each with an empty target: what the dependency layer depends on.
FROM toolchain-${BASE} AS manifests
WORKDIR /src
COPY . .
RUN find . -name '*.rs' -delete \
    && find . -name Cargo.toml -mindepth 2 -execdir sh -c 'mkdir -p src && echo "//! Empty." > src/lib.rs' \; \
    && for package in server eval benchmarks; do printf '//! Empty.\nfn main() {}\n' > "$package/src/main.rs"; done \
    && find . -type f ! -name Cargo.toml ! -name Cargo.lock ! -name lib.rs ! -name main.rs -delete \
    && find . -type d -empty -delete

# Dependencies, cached until a manifest changes.
FROM toolchain-${BASE} AS dependencies
ARG FEATURES=""
WORKDIR /src
COPY --from=manifests /src .
RUN mkdir -p server/tests models/kernels/benches && touch server/tests/traces.rs models/kernels/benches/kernels.rs \
    && cargo build --locked --profile dist --package ntl-server --package ntl-eval --features "${FEATURES}"

FROM dependencies AS build
ARG FEATURES=""
ARG COMMIT=unknown
COPY . .
# Sources are newer than the empty targets above only if they say so.
RUN find models server eval -name '*.rs' -exec touch {} + \
    && NTL_COMMIT="${COMMIT}" cargo build --locked --profile dist --package ntl-server --package ntl-eval --features "${FEATURES}"

FROM base-${BASE} AS runtime
RUN useradd --system --uid 10001 --no-create-home ntl
COPY --from=build /src/target/dist/ntl-server /src/target/dist/ntl-eval /usr/local/bin/
USER ntl
ENV NTL_HOST=0.0.0.0 NTL_PORT=8000
EXPOSE 8000
# The image has no curl: the shell speaks HTTP by itself.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/$NTL_PORT && printf 'GET /health/ready HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["ntl-server"]
