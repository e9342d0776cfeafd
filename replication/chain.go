package replication

import (
	"sync/atomic"

	"github.com/tidemark-db/tidemark/wal/record"
)

// This file keeps a writer that pipelines from skipping a sequence (contract 5, AppendStream).
//
// A chain is what one stream has sent of one pair of aggregate and client_id. Every entry of it
// carries the last sequence that was admitted before it, and Apply refuses it unless that is
// recorded: so whatever becomes of a write in flight, what was admitted behind it lands only if
// it does. What is not admitted is in no entry; and once a failure is known the writer goes back
// while what it had sent behind it is still on its way. For both the chain is broken, until an
// enforced write says with previous_client_seq where it goes on: that is compared with the
// writer's mark, in flight included, and by Apply again, so that it needs no sequence before it.
//
// A chain breaks at the moment at which its failed request leaves what is in flight, under
// Shard.mu, not when somebody reads the answer.
//
// Unenforced writes pass a broken chain and leave it broken. They carry the last admitted
// sequence like all others, but not one that is known to have failed, or they could never be
// written again.
//
// Bounds: a stream remembers maxStreamPairs pairs, all streams together maxPairBytes, besides
// those that have something in flight. Beyond that it forgets whole chains with nothing in
// flight, whose last sequence is recorded. If it has only broken ones left it forgets one, and
// then takes every pair that it does not remember for broken, for good.
const (
	maxStreamPairs = 4096
	maxPairBytes   = 64 << 20
	pairOverhead   = 192 // of a link and its place in the map
	// forgetProbes is how many pairs are looked at for one to forget.
	forgetProbes = 64
)

// streamTotals is about all streams of a shard. Shard.mu guards what is not atomic.
type streamTotals struct {
	open, pairs int
	pairBytes   int64
	limit       int64 // of pairBytes; 0 = maxPairBytes
	perStream   int   // 0 = maxStreamPairs
	// broken counts how often a chain broke, forgotten the pairs that were forgotten, and
	// forgottenBroken those of them that were broken.
	broken, forgotten, forgottenBroken atomic.Uint64
}

// chains are the pairs of one stream.
type chains struct {
	totals *streamTotals
	links  map[string]*link // by aggregate key and client_id
	// strict: a broken pair was forgotten. closed: the stream is.
	strict, closed bool
	buf            []byte
}

// link is the newest of a chain.
type link struct {
	name string
	// last is the last sequence admitted, unless that has failed; 0 = none.
	last uint64
	// inFlight is how many requests refer to the link.
	inFlight int
	broken   bool
}

func (c *chains) open(totals *streamTotals) {
	c.totals, c.links = totals, make(map[string]*link)
	totals.open++
}

func (c *chains) close() {
	for _, l := range c.links {
		c.forget(l)
	}
	c.closed = true
	c.totals.open--
}

// bind finds the links of a request, whose turn it is.
func (c *chains) bind(r *StreamRequest) {
	if r.Opaque {
		c.strict = true
		for _, l := range c.links {
			c.breaks(l)
		}
		return
	}
	client := r.Append.GetClientId()
	for i, w := range r.Append.GetWrites() {
		var key record.Key
		if r.p != nil {
			key = r.p.writes[i].Key
		} else {
			a := w.GetAggregate()
			if max(len(a.GetOrg()), len(a.GetType()), len(a.GetId()), len(client)) > record.MaxPart {
				continue // there is no such pair
			}
			key = record.MakeKey(a.GetOrg(), a.GetType(), a.GetId())
		}
		l := c.link(key, client)
		l.inFlight++
		r.links = append(r.links, l)
	}
}

func (c *chains) link(k record.Key, client string) *link {
	c.buf = append(append(c.buf[:0], k...), client...)
	if l := c.links[string(c.buf)]; l != nil {
		return l
	}
	c.makeRoom(1, pairBytes(len(c.buf)))
	l := &link{name: string(c.buf), broken: c.strict}
	c.links[l.name] = l
	c.totals.pairs++
	c.totals.pairBytes += pairBytes(len(l.name))
	return l
}

func pairBytes(name int) int64 { return int64(name) + pairOverhead }

// makeRoom forgets pairs until n more of size bytes fit, or all have something in flight.
func (c *chains) makeRoom(n int, size int64) {
	most, limit := maxStreamPairs, int64(maxPairBytes)
	if c.totals.perStream > 0 {
		most = c.totals.perStream
	}
	if c.totals.limit > 0 {
		limit = c.totals.limit
	}
	for len(c.links)+n > most || c.totals.pairBytes+size > limit {
		victim := c.victim()
		if victim == nil {
			return
		}
		c.totals.forgotten.Add(1)
		if victim.broken {
			c.strict = true
			c.totals.forgottenBroken.Add(1)
		}
		c.forget(victim)
	}
}

// victim is a pair to forget: a whole one if there is one among those looked at.
func (c *chains) victim() *link {
	var broken *link
	probes := 0
	for _, l := range c.links {
		switch {
		case l.inFlight > 0:
		case !l.broken:
			return l
		default:
			broken = l
		}
		if probes++; probes >= forgetProbes {
			break
		}
	}
	return broken
}

func (c *chains) forget(l *link) {
	delete(c.links, l.name)
	c.totals.pairs--
	c.totals.pairBytes -= pairBytes(len(l.name))
}

func (c *chains) breaks(l *link) {
	if !l.broken {
		l.broken = true
		c.totals.broken.Add(1)
	}
}

// leave lets go of a request's links.
func (c *chains) leave(r *StreamRequest) {
	for _, l := range r.links {
		l.inFlight--
	}
	r.links = nil
	if !c.closed {
		c.makeRoom(0, 0)
	}
}

// failed breaks the chains of a request that was not admitted, or that failed later.
func (c *chains) failed(r *StreamRequest) {
	for i, l := range r.links {
		c.breaks(l)
		if r.p != nil && l.last == r.p.writes[i].Highest {
			l.last = 0
		}
	}
	c.leave(r)
}

// attached is about a request that is the same as one that is recorded or in flight. It keeps
// its links while it waits for that one; else leave follows.
func (c *chains) attached(r *StreamRequest) {
	for i, l := range r.links {
		w := &r.p.writes[i]
		// What is in flight behind the older write is still the last one.
		if l.broken && mends(w) {
			l.broken, l.last = false, w.Highest
		} else if !l.broken {
			l.last = max(l.last, w.Highest)
		}
	}
}

// mends says whether a write that passes makes a broken chain whole again.
func mends(w *record.Write) bool {
	return w.Flags&record.FlagEnforce != 0 && w.Flags&record.FlagHasPrevious != 0
}

// chains tells the checks which chains of the request are broken. Shard.mu is held, as for all
// that follows. The methods below may be called on nil: a request that is on no stream.
func (r *StreamRequest) chains(states []writeState) {
	if r == nil {
		return
	}
	for i, l := range r.links {
		states[i].broken = l.broken
	}
}

// admitted puts the request, which passed, at the end of its chains.
func (r *StreamRequest) admitted(t *tenure) {
	if r == nil {
		return
	}
	r.tenure = t
	for i, l := range r.links {
		w := &r.p.writes[i]
		after := l.last
		if l.broken && mends(w) {
			l.broken, after = false, 0
		}
		record.SetAfter(r.p.buf, r.starts[i], w.Key, after)
		l.last = w.Highest
	}
}

// settled is told what became of the request when it ends to be in flight, or when its caller
// is told that the outcome is unknown. It is called once.
func (r *StreamRequest) settled(landed bool) {
	switch {
	case r == nil:
	case landed:
		r.stream.chains.leave(r)
	default:
		r.stream.chains.failed(r)
	}
}

// stats fills in what concerns streams. Shard.mu is held.
func (t *streamTotals) stats(st *Stats) {
	st.Streams, st.StreamPairs, st.StreamPairBytes, st.MaxStreamPairBytes = t.open, t.pairs, t.pairBytes, maxPairBytes
	st.StreamChainsBroken, st.StreamPairsForgotten, st.StreamPairsForgottenBroken = t.broken.Load(), t.forgotten.Load(), t.forgottenBroken.Load()
}
