# Build it after `cargo xtask dist`, with BuildKit: `docker build --platform linux/amd64 --tag <name> .`

# The ApplicationSet generator's image, with `--target appset-generator`.
FROM scratch AS appset-generator
# Of the platform that the image is for: amd64 or arm64.
ARG TARGETARCH
COPY --chmod=0755 dist/gloo-appset-generator-linux-${TARGETARCH} /gloo-appset-generator
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["/gloo-appset-generator"]

# An init container's image: it copies the plugin into a volume that it shares with the controller.
FROM scratch
ARG TARGETARCH
COPY --chmod=0755 dist/rollouts-plugin-trafficrouter-glooplatform-linux-${TARGETARCH} /rollouts-plugin-trafficrouter-glooplatform
USER 65532:65532
ENTRYPOINT ["/rollouts-plugin-trafficrouter-glooplatform"]
CMD ["install", "/plugins"]
