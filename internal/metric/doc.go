// Package metric names every series that a node shows on /metrics: what it is called, what it
// means, which labels it has and which values they take. docs/metrics.md is generated from the
// table (internal/docgen), and what is not in the table cannot be shown (Sink).
//
// It owns the names, the help texts and the buckets; the figures are kept where they arise. It
// imports no other package of the module but api, for the names of the codes.
//
// Invariants:
//   - A label's values are known when the table is written, or are the names of the nodes of the
//     cluster's configuration. Nothing that a client sends becomes one: a metric with an
//     aggregate or a client_id in it would grow without bound.
//   - Units are seconds and bytes; a counter's name ends in _total.
//   - Nothing here is global: a histogram belongs to whoever made it.
//
// Dependency: prometheus/client_golang is the reference implementation of what /metrics
// speaks. Its histograms are cheap enough for the path of a write (tens of nanoseconds, no
// allocation) and keep sum and count of one moment.
package metric
