# offaxis serve in a container: no root, no compiler, nothing that is written but /tmp and /cache.
#
#   docker build --tag offaxis --build-arg TORCH_INDEX=INDEX .
#   docker run --read-only --tmpfs /tmp --tmpfs /cache --cap-drop ALL --security-opt no-new-privileges \
#       --volume "$PWD/model:/model:ro" --env OFFAXIS_TOKEN --publish 127.0.0.1:8000:8000 offaxis
#
# The bundle is model/model.oax. Mount its folder, not the file: a new bundle takes the old one's place by renaming, and a
# mounted file would go on to be the old one.
# --build-arg PACKAGES="timm torchvision" adds the packages that bundles of their networks need.
# INDEX is PyTorch's index of CPU builds (pytorch.org, "Start Locally"), from which torch alone is taken; without it pip installs
# the several GB for CUDA. The base image is named by its content; a newer one has Debian's newer security fixes.
# A volume instead of --tmpfs /cache keeps the exported graph, so that later starts are seconds faster.
ARG BASE=python:3.11.15-slim-bookworm@sha256:b18992999dbe963a45a8a4da40ac2b1975be1a776d939d098c647482bcad5cba
FROM $BASE AS build
ARG TORCH_INDEX
ARG EXTRAS=serve,onnx,photos
ARG PACKAGES=""
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/offaxis \
 && if [ -n "$TORCH_INDEX" ]; then \
      /opt/offaxis/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" --no-deps --constraint constraints.txt torch; fi \
 && /opt/offaxis/bin/pip install --no-cache-dir --constraint constraints.txt ".[$EXTRAS]" $PACKAGES

FROM $BASE
COPY --from=build /opt/offaxis /opt/offaxis
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin offaxis \
 && install --directory --owner=10001 --group=0 --mode=0770 /cache
ENV PATH=/opt/offaxis/bin:$PATH \
    XDG_CACHE_HOME=/cache \
    MPLCONFIGDIR=/tmp/matplotlib \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=6s --start-period=90s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=5)"]
ENTRYPOINT ["offaxis", "serve"]
CMD ["/model/model.oax", "--host", "0.0.0.0", "--log", "json"]
