# syntax=docker/dockerfile:1
# dunlin as a container:
#
#     docker build -t dunlin .
#     docker run -p 8080:8080 -v ./models:/models:ro -v dunlin-cache:/cache dunlin serve -m /models/model.gguf
#
# Kernels are chosen for the CPU at run time, so one image serves all x86-64 and 64-bit ARM machines.

FROM rust:1-slim-bookworm AS build
# It has the C compiler that the cryptography of `dunlin pull` needs.
WORKDIR /source
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --release --locked -p dunlin-cli \
    && cp target/release/dunlin /usr/local/bin/dunlin

FROM debian:bookworm-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin dunlin \
    && install -d -o dunlin -g dunlin /cache /models
COPY --from=build /usr/local/bin/dunlin /usr/local/bin/dunlin
USER 10001:10001
# Packs of models and models that are fetched; a volume spares the next start the work.
VOLUME /cache
ENV DUNLIN_CACHE=/cache \
    DUNLIN_HOST=0.0.0.0 \
    DUNLIN_PORT=8080
EXPOSE 8080
# The image has no HTTP client but its shell.
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s --retries=3 \
    CMD ["timeout", "2", "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/$DUNLIN_PORT && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && read -r line <&3 && [[ $line == *' 200 '* ]]"]
# Stops taking requests and lets those under way end.
STOPSIGNAL SIGTERM
ENTRYPOINT ["dunlin"]
CMD ["serve"]
