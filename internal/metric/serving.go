package metric

import (
	"strconv"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// The outcomes of appends that have no code of the contract's.
const (
	OutcomeOK        = "ok"
	OutcomeCancelled = "cancelled"
	OutcomeDeadline  = "deadline_exceeded"
	OutcomeUnknown   = "unknown"
)

// The results of appends and reads: what a latency is about.
const (
	ResultOK        = "ok"
	ResultRefused   = "refused"
	ResultAmbiguous = "ambiguous"
	ResultFailed    = "failed"
	ResultCancelled = "cancelled"
)

// Outcome is a value of the labels of appends_total.
type Outcome struct {
	Code pb.ErrorCode // 0 = none
	Name string
}

// Outcomes are what an append can be answered with: every code of the table that this version
// sends and that is about appends (those from 3000 on are about trims and deletes, up to what any
// call may meet), and what has no code. Any other answer counts as unknown.
func Outcomes() []Outcome {
	all := []Outcome{{0, OutcomeOK}, {0, OutcomeCancelled}, {0, OutcomeDeadline}, {0, OutcomeUnknown}}
	for _, c := range api.Codes() {
		if c.MayHaveHappened != api.NoWrite && !c.Planned && (c.Code < 3000 || c.Code >= 10000) {
			all = append(all, Outcome{c.Code, c.Name})
		}
	}
	return all
}

func (o Outcome) number() string { return strconv.Itoa(int(o.Code)) }

// Values are the values of the labels.
func (o Outcome) Values() []string { return []string{o.number(), o.Name} }

// ReadMethods are the calls that read, as read_duration_seconds has them.
func ReadMethods() []string {
	return []string{"Read", "ReadAll", "GetAggregate", "GetMark", "ListMarks", "FindEvent", "ListOrgs", "ListTypes", "ListAggregates", "GetSchema", "ListSchemas"}
}

func outcomeLabels() []Label {
	code := Label{Name: "code", Meaning: "the number in docs/errors.md, 0 where there is none"}
	name := Label{Name: "outcome", Meaning: "`ok`, `cancelled` and `deadline_exceeded` (the call ended first, its write may still land), the name of the code, `unknown` for any other answer"}
	seen := map[string]bool{}
	for _, o := range Outcomes() {
		if !seen[o.number()] {
			code.Values = append(code.Values, o.number())
		}
		seen[o.number()] = true
		name.Values = append(name.Values, o.Name)
	}
	return []Label{code, name}
}

func appends() Group {
	return Group{
		Title: "Appends",
		Intro: "What clients are answered, and where the time of an append goes. Of the durations, `append` is about the whole call, and the others about its parts, in order: `admission`, `replication` (in it, `tail_fsync` on each node), `apply`.",
		Defs: []Def{
			{Name: "appends_total", Kind: Counter, Labels: outcomeLabels(), Help: text(`
				Appends that were answered, by what they were answered with. 2002, 2003 and 2013 are how clients
				find out where they are; a lasting rate of 2012, 2014, 2018 or 11000 means that the node cannot keep up,
				and any 11001 (Internal) or unknown is worth a look at the log.`)},
			{Name: "append_duration_seconds", Kind: Histogram, Buckets: Durations(),
				Labels: []Label{{Name: "result", Values: []string{ResultOK, ResultRefused, ResultAmbiguous}, Meaning: "`refused`: nothing was written; `ambiguous`: the write may have landed (2014, Internal, a deadline, a cancellation)"}},
				Help: text(`
				How long an append took on this node, from its first byte to its answer. A high quantile of "ok" above what was
				agreed with clients is bad; the other durations of this page say which part is slow.`)},
			{Name: "admission_duration_seconds", Kind: Histogram, Buckets: Durations(), Help: text(`
				How long an append took from its arrival at the shard until it went into a log entry: judged, and queued for
				its turn. It grows when entries are slow to be replicated, since at most outstanding_entries_limit of them are
				on their way: then look at replication and tail_fsync.`)},
			{Name: "replication_duration_seconds", Kind: Histogram, Buckets: Durations(), Help: text(`
				How long a log entry of this leader took from being handed to raft until it was committed and its Apply began:
				the flush here, the way to the followers, their flush. High while tail_fsync is low on all nodes means the
				network, or an Apply that does not keep up.`)},
			{Name: "apply_duration_seconds", Kind: Histogram, Buckets: Durations(), Help: text(`
				How long one step of Apply took, on every node: decide over some entries, commit them to the history, publish.
				More than the time between entries is bad; look at history_write_stalls_total and cache misses.`)},
			{Name: "entry_requests", Kind: Histogram, Buckets: counts(), Help: text(`
				Appends in each log entry that this leader proposed. It grows with load: entries take in what has queued.
				Always 1 under load from many clients means that they wait for each other.`)},
			{Name: "entry_bytes", Kind: Histogram, Buckets: sizes(), Help: text(`
				Bytes of each log entry that this leader proposed. An entry above 512 KiB holds one large request and delays
				everything behind it.`)},
			{Name: "batch_events", Kind: Histogram, Buckets: counts(), Help: text(`
				Events in each batch that this leader proposed.`)},
			{Name: "in_flight_requests", Kind: Gauge, Help: text(`
				Appends that are admitted and not decided. It returns to 0 when clients pause; that it does not means that
				nothing is committed any more.`)},
			{Name: "in_flight_aggregates", Kind: Gauge, Help: "Aggregates that appends in flight write to."},
			{Name: "in_flight_bytes", Kind: Gauge, Help: "Bytes of the appends in flight. Near in_flight_limit_bytes, appends are about to be refused with 2012."},
			{Name: "in_flight_limit_bytes", Kind: Gauge, Help: "Bytes in flight above which appends are answered 2012 (max-in-flight-bytes)."},
			{Name: "outstanding_entries", Kind: Gauge, Help: "Log entries that are proposed and not decided. At its limit without a pause: entries take as long as the disk and the network need, which is normal under full load."},
			{Name: "outstanding_entries_limit", Kind: Gauge, Help: "Most log entries that are proposed at once."},
		},
	}
}

func calls() Group {
	listener := []Label{{Name: "listener", Values: []string{"grpc", "http"}}}
	return Group{
		Title: "Calls and connections",
		Intro: "What the node has in hand, each with its bound.",
		Defs: []Def{
			{Name: "calls", Kind: Gauge, Help: "Calls that are worked on, health and reflection left out. At calls_limit the next one is answered 11000."},
			{Name: "calls_limit", Kind: Gauge, Help: "Most calls that are worked on at once (max-concurrent-calls)."},
			{Name: "read_calls", Kind: Gauge, Help: "Calls that read and are worked on. At read_calls_limit the next one is answered 11000."},
			{Name: "read_calls_limit", Kind: Gauge, Help: "Most calls that read and are worked on at once (max-concurrent-reads)."},
			{Name: "subscriptions", Kind: Gauge, Help: "Open subscriptions. At subscriptions_limit the next one is answered 8005."},
			{Name: "subscriptions_limit", Kind: Gauge, Help: "Most open subscriptions (max-subscribers)."},
			{Name: "append_streams", Kind: Gauge, Help: "Open AppendStream calls; each is one of calls."},
			{Name: "append_stream_bytes", Kind: Gauge, Help: "Bytes of the appends on streams without an answer. A stream with append_stream_limit_bytes of them is not received from."},
			{Name: "append_stream_limit_bytes", Kind: Gauge, Help: "Bytes without an answer from which on one stream is not received from."},
			{Name: "append_stream_waits_total", Kind: Counter, Help: "Times that a stream was not received from because of that. It grows where a client keeps more outstanding than a node takes in, or does not read its answers."},
			{Name: "append_stream_pairs", Kind: Gauge, Help: "Pairs of an aggregate and a writer that streams remember, 4096 each."},
			{Name: "append_stream_pair_bytes", Kind: Gauge, Help: "Bytes of those pairs."},
			{Name: "append_stream_pair_limit_bytes", Kind: Gauge, Help: "Bytes of pairs from which on streams forget some."},
			{Name: "append_stream_pairs_forgotten_total", Kind: Counter, Labels: []Label{{Name: "chain", Values: []string{"whole", "broken"}, Meaning: "`broken`: since then, the stream takes every pair that it does not remember for broken, and answers 2030 to enforced writes without previous_client_seq"}}, Help: "Pairs that streams have forgotten. Anything above 0 for \"broken\" means that a client should use more streams, or close one on which much has failed."},
			{Name: "append_chains_broken_total", Kind: Counter, Help: "Times that a request on a stream failed and broke the chain of a pair. It grows with failed appends."},
			{Name: "request_bytes", Kind: Gauge, Help: "Bytes of the requests that are worked on, as encoded. At request_limit_bytes the next one is answered 11000."},
			{Name: "request_limit_bytes", Kind: Gauge, Help: "Most bytes of requests that are worked on at once (twice max-in-flight-bytes)."},
			{Name: "calls_refused_total", Kind: Counter, Help: "Calls that were answered 11000 (ServerBusy) because a bound was reached. A lasting rate means too little capacity, or clients that do not let go."},
			{Name: "call_panics_total", Kind: Counter, Help: "Calls that met a bug and were answered Internal. Anything above 0 is to be reported, with the stack in the node's log."},
			{Name: "connections", Kind: Gauge, Labels: listener, Help: "Open connections. At connections_limit the next one is closed at once."},
			{Name: "connections_limit", Kind: Gauge, Labels: listener, Help: "Most open connections."},
			{Name: "connections_refused_total", Kind: Counter, Labels: listener, Help: "Connections closed at once because there were too many. Anything above 0 means clients that make a connection a call."},
		},
	}
}

func reads() Group {
	method := Label{Name: "method", Values: ReadMethods()}
	return Group{
		Title: "Reads",
		Defs: []Def{
			{Name: "reads_total", Kind: Counter,
				Labels: []Label{method, {Name: "result", Values: []string{ResultOK, ResultRefused, ResultFailed, ResultCancelled}, Meaning: "`refused`: the answer has a code that is the caller's matter; `failed`: this node could not answer; `cancelled`: the call's deadline or its caller ended it"}},
				Help:   `Calls that read and have ended, by what became of them. A rate of "failed" is bad: look at the log.`},
			{Name: "read_duration_seconds", Kind: Histogram, Buckets: Durations(), Labels: []Label{method}, Help: text(`
				How long a call that reads took, from its first byte to the end of its answer: what a slow client takes to
				receive a long one is part of it.`)},
			{Name: "read_bytes", Kind: Gauge, Help: "Bytes of answers to reads that are being built or that clients have not taken yet. At read_limit_bytes reads wait."},
			{Name: "read_limit_bytes", Kind: Gauge, Help: "Bytes above which reads wait for clients to take answers (max-read-bytes)."},
			{Name: "reads_waiting", Kind: Gauge, Help: "Reads that wait because answers hold too many bytes. Lasting means slow clients, or too small a max-read-bytes."},
			{Name: "read_waits_total", Kind: Counter, Help: "Times that a read had to wait because answers held too many bytes."},
			{Name: "stalled_connections_closed_total", Kind: Counter, Help: "Connections closed because their clients took no answers while other reads waited for the memory. Anything above 0 points to a client that hangs."},
		},
	}
}

func caches() Group {
	labels := []Label{
		{Name: "cache", Values: []string{"head", "mark"}, Meaning: "heads of aggregates, or marks of writers that are not the head's last"},
		{Name: "user", Values: []string{"admission", "apply"}},
	}
	return Group{
		Title: "Heads and marks in memory",
		Intro: "What the checks need to know. Admission and Apply each have a cache of their own; what is in neither is derived from the history.",
		Defs: []Def{
			{Name: "cache_entries", Kind: Gauge, Labels: labels, Help: "Heads of aggregates, or marks of writers, that are kept in memory."},
			{Name: "cache_bytes", Kind: Gauge, Labels: labels, Help: "Bytes that those take."},
			{Name: "cache_limit_bytes", Kind: Gauge, Labels: labels, Help: "Most bytes that those may take (half of head-cache-bytes or mark-cache-bytes)."},
			{Name: "cache_hits_total", Kind: Counter, Labels: labels, Help: "Look-ups that found an entry."},
			{Name: "cache_misses_total", Kind: Counter, Labels: labels, Help: "Look-ups that found none. More misses than hits, with a cache that is full, means that more aggregates are active than fit: throughput falls to what look-ups allow."},
			{Name: "cache_evictions_total", Kind: Counter, Labels: labels, Help: "Entries dropped to stay below the limit."},
			{Name: "cache_rebuild_duration_seconds", Kind: Histogram, Buckets: lookups(), Labels: labels, Help: text(`
				How long it took to derive a head, or a mark, from the history after a miss. Tens of microseconds while the
				blocks are in memory; milliseconds mean reads from the disk: see block_cache_misses_total.`)},
		},
	}
}
