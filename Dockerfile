#     docker build -t ntl-server .
#     docker run --rm -p 8000:8000 -v /path/to/checkpoint:/model:ro ntl-server --model t5=/model
#     docker run --rm --network host --entrypoint ntl-eval ntl-server list
#
# With CUDA, on a GPU of the host:
#
#     docker build --build-arg FEATURES=cuda -t ntl-server:cuda .
#     docker run --rm --gpus all -p 8000:8000 -v kernels:/var/cache/ntl-server \
#         -v /path/to/checkpoint:/model:ro ntl-server:cuda --model t5=/model
#
# The build needs BuildKit, for the cache mounts (the default since Docker 23), or buildah.
# FEATURES are cargo features of ntl-server. BASE selects the base images: `cpu`, `otel` (the same
# images) or `cuda`. Set it if FEATURES is anything else, such as `cuda,otel`. Kernels are for GPUs of
# CUDA_COMPUTE_CAP (80: Ampere) and later; from 90 on for that one only. PROFILE is a cargo profile; `release`
# compiles faster.
ARG FEATURES=""
ARG BASE=${FEATURES:-cpu}
ARG RUST_IMAGE=rust:1.95-bookworm
ARG CUDA_VERSION=13.0.1
ARG CUDA_OS=ubuntu24.04

FROM ${RUST_IMAGE} AS toolchain-cpu
ENV CARGO_TARGET_DIR=/cache/target
FROM toolchain-cpu AS toolchain-otel
FROM nvidia/cuda:${CUDA_VERSION}-devel-${CUDA_OS} AS toolchain-cuda
ENV RUSTUP_HOME=/usr/local/rustup CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:$PATH
COPY --from=toolchain-cpu /usr/local/rustup /usr/local/rustup
COPY --from=toolchain-cpu /usr/local/cargo /usr/local/cargo
ARG CUDA_COMPUTE_CAP=80
# Its C library is another one, and programs that are built in the course do not run with the other.
ENV CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP} CARGO_TARGET_DIR=/cache/target-cuda
# Programs that are linked with the driver start here without one.
RUN mkdir /driver && ln -s /usr/local/cuda/lib64/stubs/libcuda.so /driver/libcuda.so.1

FROM debian:bookworm-slim AS base-cpu
FROM base-cpu AS base-otel
# Beside the driver, which comes from the host, these two are all that is linked.
FROM nvidia/cuda:${CUDA_VERSION}-base-${CUDA_OS} AS base-cuda
RUN version="$(echo "${NV_CUDA_CUDART_VERSION:-13.0}" | cut -d. -f1,2 | tr . -)" \
    && apt-get update \
    && apt-get install --yes --no-install-recommends "libcublas-$version" "libcurand-$version" \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=10001 --group=10001 /var/cache/ntl-server
# The driver compiles kernels at the first start and keeps them here. A volume keeps them for the next
# container.
ENV CUDA_CACHE_PATH=/var/cache/ntl-server

# The cache mounts keep crates and compiled dependencies from build to build.
FROM toolchain-${BASE} AS build
ARG FEATURES=""
ARG PROFILE=dist
ARG COMMIT=unknown
ENV CARGO_HOME=/cache/cargo
WORKDIR /src
COPY . .
# Cargo compares times: files of an older checkout must not pass for unchanged.
RUN --mount=type=cache,target=/cache \
    find . -type f -exec touch {} + \
    && NTL_COMMIT="${COMMIT}" cargo build --locked --profile "${PROFILE}" --package ntl-server --package ntl-eval \
        --features "${FEATURES}" \
    && install -D --target-directory=/out/bin \
        "$CARGO_TARGET_DIR/${PROFILE}/ntl-server" "$CARGO_TARGET_DIR/${PROFILE}/ntl-eval" \
    && for program in /out/bin/*; do LD_LIBRARY_PATH=/driver "$program" manual /out/share || exit; done

FROM base-${BASE}
COPY --from=build /out/ /usr/local/
# A number, so that Kubernetes can check that the user is not root.
USER 10001:10001
ENV NTL_HOST=0.0.0.0 NTL_PORT=8000
EXPOSE 8000
# The image has no curl: the shell speaks HTTP by itself.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/$NTL_PORT && printf 'GET /health/ready HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["ntl-server"]
