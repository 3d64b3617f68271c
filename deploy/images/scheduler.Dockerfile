# nvshare-scheduler, nvshare-pod-watch and nvshare-exporter, and libnvshare.so for the node. Built by `make images`, from dist/*.whl.
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm
FROM ${PYTHON_IMAGE} AS install
COPY dist/*.whl /wheels/
RUN python3 -m venv /opt/nvshare && \
    /opt/nvshare/bin/pip install --no-cache-dir --disable-pip-version-check "$(ls /wheels/nvshare-*.whl)[kube,metrics]" && \
    /opt/nvshare/bin/pip uninstall --yes --quiet pip

FROM ${PYTHON_IMAGE}
COPY --from=install /opt/nvshare /opt/nvshare
ENV PATH=/opt/nvshare/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Root: the socket's folder belongs to the node's root, and what a task may do is told by the kernel to root alone.
# The chart takes every capability but one away.
USER 0
ENTRYPOINT ["nvshare-scheduler"]
