# syntax=docker/dockerfile:1
# Two stages: build tools and downloads stay out of the image that runs.

FROM python:3.11-slim AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements.lock pyproject.toml README.md LICENSE ./
# The lock also pins development tools; as constraints it pins only what is installed. Extras are
# cut off, because pip accepts none in a constraint.
RUN sed -nE 's/^([A-Za-z0-9._-]+)(\[[^]]*\])?(==[^ ;\\]+).*/\1\3/p' requirements.lock > constraints.txt
COPY gateway ./gateway
# Without LiteLLM: docker build --build-arg DISTRIBUTION=./packages/steering-gateway-core .
COPY packages/steering-gateway-core ./packages/steering-gateway-core
ARG DISTRIBUTION=.
# pip compiles the modules here: the image's user may not write, and would compile at every start.
RUN python -m venv /opt/gateway \
 && /opt/gateway/bin/pip install --constraint constraints.txt "${DISTRIBUTION}[postgres]"

FROM python:3.11-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin gateway \
 && install -d -o gateway -g gateway /data
COPY --from=build /opt/gateway /opt/gateway
ENV PATH=/opt/gateway/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GATEWAY_SERVER__HOST=0.0.0.0 \
    GATEWAY_STORAGE__PATH=/data/gateway.db
# Mount a config at /data/config.yaml, where `gateway serve` finds it.
WORKDIR /data
VOLUME /data
USER gateway
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('GATEWAY_SERVER__PORT', '8080') + '/healthz', timeout=2)"]
ENTRYPOINT ["gateway"]
CMD ["serve"]
