# Everything here needs Go, make and git; no C compiler but for `make race`, no protoc. The
# tools are Go programs pinned in tools/go.mod, built when they are first used.

GO    ?= go
TOOL  := $(GO) tool -modfile=tools/go.mod
# No cgo: the binary is static and the same everywhere. `make race` is the exception.
export CGO_ENABLED := 0

# The version in the binary comes from git, where there is a usable repository.
VCS := $(shell git rev-parse --verify -q HEAD >/dev/null 2>&1 && echo auto || echo false)

# Arguments for `make run`, as in: make run ARGS="--listen 127.0.0.1:9000"
ARGS     ?=
# What `make test` runs, and what `make race` does: the packages with goroutines that share
# something. Suites over whole nodes run too slowly under the race detector to run always: of
# them it takes what lets calls race, and stops and crashes under load, for about a minute.
PACKAGES    ?= ./...
RACE        ?= ./mark/... ./replication/... ./server/... ./wal/...
RACE_FAULTS ?= SIGTERM|SecondProcess|SilentConnections|FailingWrite|StaysFull|MetByACall
# How long `make chaos` goes on, and what it is drawn from.
DURATION ?= 10m
SEED     ?= 0
# How long `make fuzz` spends on each target.
FUZZTIME ?= 30s
# How often `make failover` kills the leader.
KILLS    ?= 100
# How many seeds `make sim` runs, and what it gives the test beside, as in:
# make sim SIMFLAGS="-sim.seed 42" replays one and shrinks what it finds.
SEEDS    ?= 20000
SIMFLAGS ?=

.DEFAULT_GOAL := help

.PHONY: run
run: build ## Build and start one node on the defaults: gRPC on 127.0.0.1:7440, data in ./tidemark-data
	./bin/tidemark serve $(ARGS)

.PHONY: build
build: ## Build bin/tidemark
	$(GO) build -buildvcs=$(VCS) -o bin/tidemark ./cmd/tidemark

# -count=1: suites that build and run the binary would else be answered from the test cache,
# which does not know what the binary is made of.
.PHONY: test
test: ## Build everything and run all tests
	$(GO) build ./...
	$(GO) test -count=1 $(PACKAGES)

.PHONY: race
race: ## Run the tests of the concurrent packages under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race $(RACE)
	CGO_ENABLED=1 $(GO) test -race ./test/contract
	CGO_ENABLED=1 $(GO) test -race -run '^TestRaces$$|^TestSixteen' ./test/model -rapid.checks=5
	CGO_ENABLED=1 $(GO) test -race -run '$(RACE_FAULTS)' ./test/faults

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (default 30s)
	tools/fuzz.sh $(FUZZTIME)

.PHONY: failover
failover: ## Kill the leader of three nodes KILLS times (default 100), and print how long writes stood still
	$(GO) test -v ./test/failover -args -kills $(KILLS)

.PHONY: chaos
chaos: ## Break a cluster under load for DURATION (default 10m), by SEED (default 0 = a new one); needs root
	$(GO) test ./test/chaos -v -timeout 0 -args -duration $(DURATION) -seed $(SEED)

.PHONY: sim
sim: ## Simulate a cluster under an adversary for SEEDS seeds (default 20000); failing ones are printed and shrunk
	$(GO) test ./replication -count=1 -timeout 0 -run '^TestSimulation$$' -sim.seeds $(SEEDS) $(SIMFLAGS)

.PHONY: lint
lint: vet staticcheck imports proto files tidy deploy-check ## Run every linter below

.PHONY: vet
vet: ## go vet
	$(GO) vet ./...
	$(GO) vet -tags faultpoints ./cmd/tidemark

.PHONY: staticcheck
staticcheck: ## staticcheck, configured in staticcheck.conf
	$(TOOL) staticcheck ./...

.PHONY: imports
imports: ## depguard: who may import whom, by tools/imports.yml
	tools/imports.sh

.PHONY: proto
proto: ## buf lint
	$(TOOL) buf lint

.PHONY: files
files: ## gofmt, length of files, words that do not belong
	tools/files.sh

.PHONY: tidy
tidy: ## go.mod, go.sum and the tools' hold what is needed and no more
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff
	$(GO) -C tools/deploy mod tidy -diff

.PHONY: deploy-check
deploy-check: ## Render and check what is in deploy/: chart, manifests, compose file, Dockerfile
	$(GO) -C tools/deploy vet ./...
	$(GO) -C tools/deploy test -count=1 ./...

.PHONY: deploy-generate
deploy-generate: ## Render deploy/kubernetes from the chart
	$(GO) -C tools/deploy test . -run '^TestKubernetesIsTheRenderedChart$$' -args -update

# The Dockerfile's other stages build the binary in a container, which needs the image golang.
.PHONY: image
image: ## Build the image tidemark:latest from a binary that is built here; needs Docker and no registry
	rm -rf bin/image && mkdir -p bin/image/data
	GOOS=linux $(GO) build -buildvcs=$(VCS) -trimpath -o bin/image/tidemark ./cmd/tidemark
	docker build -f Dockerfile --target prebuilt -t tidemark:latest bin/image

.PHONY: release
release: ## Build archives, Debian packages and SHA256SUMS of the current commit into bin/release
	tools/release.sh

.PHONY: release-check
release-check: ## Release for this machine twice; fail if the bytes differ or something is missing
	tools/release-check.sh

.PHONY: generate
generate: ## Regenerate the code of the protos and the documentation that comes from code
	$(TOOL) buf generate
	$(GO) run ./internal/docgen

.PHONY: check-generated
check-generated: ## Fail if what `make generate` makes differs from what is committed
	tools/check-generated.sh
	$(GO) test -run '^TestDocumentsAreCurrent$$' ./internal/docgen

.PHONY: clean
clean: ## Remove what was built; leaves data directories alone
	rm -rf bin

.PHONY: help
help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
