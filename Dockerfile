# One bridge in one container. The workspace (database, skills, mcp.json, the sessions' files) is the volume /data.

FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/causeway
WORKDIR /src
# The packages change seldom, the source often: two layers.
COPY requirements.lock ./
RUN /opt/causeway/bin/pip install --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
COPY bridge bridge
COPY channels channels
COPY skills skills
RUN /opt/causeway/bin/pip install --no-deps --no-build-isolation .

FROM python:3.11-slim
# ca-certificates: TLS is checked against the system's store.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin causeway \
    && install --directory --owner=causeway --group=causeway /data
COPY --from=build /opt/causeway /opt/causeway
# Found last, so a config.yaml of your own in /data comes before it.
COPY --chown=root:root docker/config.yaml /home/causeway/.causeway/config.yaml
ENV PATH=/opt/causeway/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER causeway
WORKDIR /data
VOLUME /data
EXPOSE 8765
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8765/healthz', timeout=4).read()"]
STOPSIGNAL SIGTERM
CMD ["causeway", "run"]
