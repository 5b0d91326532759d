# The app-tool proxy. How to use it: docs/how-to/deploy-proxy.md.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements/run.lock requirements/run.lock
COPY src src
# The versions the project is tested with; only those the proxy needs are installed.
RUN sed -n 's/^\([A-Za-z0-9._-]*==[^ ;\\]*\).*/\1/p' requirements/run.lock > constraints.txt
RUN python -m venv /opt/openclaw
RUN /opt/openclaw/bin/pip install --quiet --no-cache-dir --constraint constraints.txt ".[redis]"
RUN /opt/openclaw/bin/python -m compileall -q /opt/openclaw/lib

FROM python:3.13-slim
RUN useradd --system --no-create-home --uid 10001 openclaw && install -d -o openclaw -m 700 /var/lib/openclaw
COPY --from=build /opt/openclaw /opt/openclaw
ENV PATH=/opt/openclaw/bin:$PATH PYTHONDONTWRITEBYTECODE=1 OPENCLAW_STATE_DIR=/var/lib/openclaw
# Where a proxy without Redis keeps its sessions.
VOLUME /var/lib/openclaw
USER openclaw
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["openclaw"]
CMD ["proxy", "--host", "0.0.0.0", "--port", "8000"]
