# docker build --tag bugle .
FROM rust:1.92-bookworm AS build
WORKDIR /src
# --build-arg FEATURES=otlp for a worker that exports spans
ARG FEATURES=

# The dependencies, with empty sources: this layer stays in the cache until Cargo.lock changes.
COPY Cargo.toml Cargo.lock ./
RUN mkdir src bin && touch src/lib.rs && echo 'fn main() {}' > bin/bugle.rs \
    && cargo build --release --locked --bin bugle --features "$FEATURES" \
    && rm -r src bin

COPY build.rs askama.toml ./
COPY migrations migrations
COPY sql sql
COPY src src
COPY bin bin
# the program serves the description of its API
COPY docs/openapi.json docs/openapi.json
# COPY keeps modification times; touch the sources, or cargo would consider the empty ones newer.
RUN touch src/lib.rs bin/bugle.rs \
    && cargo build --release --locked --bin bugle --features "$FEATURES"

FROM debian:bookworm-slim
# CA certificates, for TLS connections to Postgres and HTTPS requests
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home bugle
COPY --from=build /src/target/release/bugle /usr/local/bin/bugle
# a numeric user, so that Kubernetes can verify that it is not root
USER 10001:10001
WORKDIR /home/bugle
# Checks the liveness of the worker at BUGLE_LISTEN or 127.0.0.1:8421. For containers without an endpoint, use
# --no-healthcheck.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 CMD ["bugle", "health", "--live"]
# docker stop drains: running jobs finish or are given back
STOPSIGNAL SIGTERM
ENTRYPOINT ["bugle"]
CMD ["--help"]
# --build-arg REVISION=$(git rev-parse HEAD)
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Bugle" \
      org.opencontainers.image.description="A Postgres-native job runner: worker, migrations and tools in one program" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
