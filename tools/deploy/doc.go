// Package deploy checks what is in the directories deploy and the Dockerfile without a
// container, a cluster or a registry, and renders deploy/kubernetes from the Helm chart.
//
// It is a module of its own, so that what it depends on is no dependency of Tidemark: helm's
// engine and linter render the chart as helm does; jsonschema checks manifests against
// schemas/kubernetes.json; compose-go reads compose files as docker compose does; buildkit's
// parser reads Dockerfiles as docker build does.
//
// What needs the binary is in test/deploy.
//
// "make deploy-generate" (go test . -args -update) writes deploy/kubernetes anew.
package deploy
