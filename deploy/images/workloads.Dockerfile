# The workloads of the examples and of `nvshare kube-test`: driver-API programs, no CUDA toolkit. Built by `make images`.
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm
FROM ${PYTHON_IMAGE} AS install
COPY dist/*.whl /wheels/
RUN python3 -m venv /opt/nvshare && \
    /opt/nvshare/bin/pip install --no-cache-dir --disable-pip-version-check /wheels/nvshare-*.whl && \
    /opt/nvshare/bin/pip uninstall --yes --quiet pip

FROM ${PYTHON_IMAGE}
COPY --from=install /opt/nvshare /opt/nvshare
# The container runtime puts the driver's libraries in; compute, because these programs compute.
ENV PATH=/opt/nvshare/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65534:65534
CMD ["python3", "-m", "nvshare.bench.workloads", "add-small", "--progress"]
