# syntax=docker/dockerfile:1
#
#     docker build -t ntl-server .
#     docker run --rm -p 8000:8000 -v /path/to/checkpoint:/model:ro ntl-server --model t5=/model
#
# FEATURES are cargo features of ntl-server. `cuda` also needs a BUILD_IMAGE with the CUDA toolkit and Rust, and a
# RUNTIME_IMAGE with the CUDA libraries.
ARG BUILD_IMAGE=rust:1.95-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

# Manifests only, each with an empty target: what the dependency layer depends on.
FROM ${BUILD_IMAGE} AS manifests
WORKDIR /src
COPY . .
RUN find . -name '*.rs' -delete \
    && find . -name Cargo.toml -mindepth 2 -execdir sh -c 'mkdir -p src && echo "//! Empty." > src/lib.rs' \; \
    && for package in server eval benchmarks; do printf '//! Empty.\nfn main() {}\n' > "$package/src/main.rs"; done \
    && find . -type f ! -name Cargo.toml ! -name Cargo.lock ! -name lib.rs ! -name main.rs -delete \
    && find . -type d -empty -delete

# Dependencies, cached until a manifest changes.
FROM ${BUILD_IMAGE} AS dependencies
ARG FEATURES=""
WORKDIR /src
COPY --from=manifests /src .
RUN mkdir -p benchmarks/benches server/tests && touch benchmarks/benches/decode.rs server/tests/traces.rs \
    && cargo build --locked --release --package ntl-server --package ntl-eval --features "${FEATURES}"

FROM dependencies AS build
ARG FEATURES=""
ARG COMMIT=unknown
COPY . .
# Sources are newer than the empty targets above only if they say so.
RUN find models server eval -name '*.rs' -exec touch {} + \
    && NTL_COMMIT="${COMMIT}" cargo build --locked --release --package ntl-server --package ntl-eval --features "${FEATURES}"

FROM ${RUNTIME_IMAGE} AS runtime
RUN useradd --system --uid 10001 --no-create-home ntl
COPY --from=build /src/target/release/ntl-server /src/target/release/ntl-eval /usr/local/bin/
USER ntl
ENV NTL_HOST=0.0.0.0 NTL_PORT=8000
EXPOSE 8000
# The image has no curl: the shell speaks HTTP by itself.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/$NTL_PORT && printf 'GET /health/ready HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["ntl-server"]
