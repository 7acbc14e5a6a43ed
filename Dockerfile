FROM rust:1.92-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock build.rs ./
COPY migrations migrations
COPY sql sql
COPY src src
COPY bin bin
# part of the program: it serves the description of its API
COPY docs/openapi.json docs/openapi.json
# docker build --build-arg FEATURES=otlp . for a worker that exports spans
ARG FEATURES=
RUN cargo build --release --locked --bin bugle --features "$FEATURES"

FROM debian:bookworm-slim
# certificates, for commands that send requests by https
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home bugle
COPY --from=build /src/target/release/bugle /usr/local/bin/bugle
USER bugle
WORKDIR /home/bugle
# Asks the worker at BUGLE_LISTEN, or 127.0.0.1:9187, whether its parts move. For containers that listen nowhere: --no-healthcheck
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 CMD ["bugle", "health", "--live"]
ENTRYPOINT ["bugle"]
CMD ["--help"]
