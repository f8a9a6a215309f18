# The image of the pods in k8s: `docker build --tag magnetar .`
FROM python:3.11-slim AS wheel
WORKDIR /source
RUN python -m pip install --no-cache-dir "setuptools>=77"
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim
COPY k8s/requirements.lock /tmp/requirements.lock
RUN python -m pip install --no-cache-dir --require-hashes --requirement /tmp/requirements.lock
COPY --from=wheel /wheels /tmp/wheels
RUN python -m pip install --no-cache-dir --no-deps /tmp/wheels/magnetar-*.whl
RUN useradd --uid 1000 --create-home magnetar && install --directory --owner magnetar --group magnetar /var/lib/magnetar
ENV MAGNETAR_DATA_DIR=/var/lib/magnetar RAY_USAGE_STATS_ENABLED=0
# See "Ray's own time-outs" in docs/operations/upgrades.md.
ENV RAY_grpc_client_keepalive_timeout_ms=10000 RAY_raylet_liveness_self_check_interval_ms=5000
USER magnetar
WORKDIR /home/magnetar
CMD ["magnetar", "--help"]
