// Package server answers gRPC calls and the HTTP probes of one node.
//
// It owns what a request must look like (validate*.go), how bytes become messages
// (codec.go), what every call passes (chain.go), how the answers of reads are put together
// (read.go, aggregate.go, marks.go, list.go), how much of them may be in memory (budget.go,
// outbound.go, stall.go), and what probes are told (http.go, health.go). It decides nothing
// about a write: an append whose shape is right goes to the shard, and the shard's answer goes
// back; and so does a change of the cluster (cluster.go).
//
// It may import api, config, wal, mark and replication; cmd imports it.
//
// Invariants:
//   - Every call, of every service, passes the chain: its panic is an answer, its error
//     has a code of the contract's table or is a plain deadline or cancellation.
//   - A request is refused for its size or its counts before it is decoded, so the memory
//     that a request takes is a small multiple of its bytes, and the bytes of all requests
//     at work are bounded.
//   - A read holds one view from its first batch to its end, so an answer never mixes two
//     moments, and it holds one message's worth of batches, or two, however long the aggregate
//     is.
//   - The bytes of all answers are bounded, from before the first batch is read from the store
//     until the last one has been handed to the connection, whatever clients do. A read that
//     waits for its client or for memory holds no iterator.
//
// Dependencies: google.golang.org/grpc and protobuf are the wire; its health and reflection
// packages are the standard services; go.uber.org/zap is the project's log;
// prometheus/client_golang serves /metrics (metrics.go, meter.go; the names are in
// internal/metric).
package server
