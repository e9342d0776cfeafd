# An image with nothing in it but the binary: no shell, no libraries, no package to patch.
#
#   docker build -t tidemark .                        builds the binary in a container
#   make image                                        puts a binary that was built here into one;
#                                                     needs nothing from a registry
#
# Nodes of a cluster take their --node-id, --peers and addresses from the command line or the
# environment; see deploy/.

# What every image is, whoever built the binary.
FROM scratch AS base
# Of the node itself only its data directory is written. 65532 is nobody's number on a usual host.
USER 65532:65532
# In a container the only way in is the container's own address; what is published is the
# operator's choice. There is no authentication yet: publish to networks that you trust.
ENV TIDEMARK_DATA_DIR=/var/lib/tidemark \
    TIDEMARK_LISTEN=0.0.0.0:7440 \
    TIDEMARK_HTTP_LISTEN=0.0.0.0:7442
EXPOSE 7440 7441 7442
STOPSIGNAL SIGTERM
# A node that waits for the others to form a cluster is not unhealthy before a minute.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["/usr/bin/tidemark", "health"]
ENTRYPOINT ["/usr/bin/tidemark"]
CMD ["serve"]

# The binary comes from the build context, as `make image` lays it out. It stands before the
# build, because the classic builder runs every stage above the one that it is asked for.
FROM base AS prebuilt
COPY tidemark /usr/bin/tidemark
COPY --chown=65532:65532 data /var/lib/tidemark
VOLUME ["/var/lib/tidemark"]

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# The version in the binary comes from .git, if the build context has it.
RUN CGO_ENABLED=0 go build -trimpath -o /out/tidemark ./cmd/tidemark && mkdir /out/data

FROM base
COPY --from=build /out/tidemark /usr/bin/tidemark
# An empty directory of this owner, which a volume takes over when it is made.
COPY --from=build --chown=65532:65532 /out/data /var/lib/tidemark
VOLUME ["/var/lib/tidemark"]
