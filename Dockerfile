# harness in a container, on the CPU:
#     docker build -t harness . && docker run --rm -v "$PWD:/work" harness run quickstart --report
# on NVIDIA GPUs (not tested: no GPU was at hand):
#     docker build -t harness:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 .
#     docker run --rm --gpus all --shm-size 8g -v "$PWD:/work" harness:cuda run quickstart --device cuda
FROM python:3.11-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN apt-get update && apt-get install -y --no-install-recommends build-essential git && rm -rf /var/lib/apt/lists/*
COPY . /src
WORKDIR /src
RUN python -m venv /opt/harness \
 && /opt/harness/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)" \
 && pip install --no-cache-dir uv==0.13.9 \
 && uv pip install --no-cache --python /opt/harness/bin/python -c hashes.txt '.[slurm,ray]'

FROM python:3.11-slim-bookworm
# iproute2: shaped networks (they need --privileged, too).
RUN apt-get update && apt-get install -y --no-install-recommends iproute2 git && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 harness && mkdir /work /cache && chown harness /work /cache
COPY --from=build /opt/harness /opt/harness
ENV PATH=/opt/harness/bin:$PATH HARNESS_CACHE=/cache
USER harness
WORKDIR /work
ENTRYPOINT ["harness"]
CMD ["--help"]
