package audit

import (
	"fmt"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// aggregate is the one that is being checked, as far as that has come.
type aggregate struct {
	a   *Auditor
	key record.Key
	// head is that of the step's view.
	head history.Head
	// incarnation is the life that is checked, up to the version that was its newest when it
	// was begun: an aggregate that is written faster than it is read must end, too.
	incarnation uint32
	target      uint64
	// next is the version that must come next; before is the one below it, unset if that was
	// not seen or is not what it should be.
	next   uint64
	before link
	// from is where the scan goes on.
	from     place
	finished bool
}

type place struct {
	incarnation uint32
	version     uint64
}

// link is what the next batch goes on from.
type link struct {
	set         bool
	version     uint64
	chain       record.Hash
	nextEvent   uint64
	position    uint64
	committedAt int64
}

func (g *aggregate) find(kind pb.FindingKind, incarnation uint32, version uint64, format string, args ...any) {
	g.a.found = append(g.a.found, Finding{Kind: kind, Key: g.key, Incarnation: incarnation, Version: version, Text: fmt.Sprintf(format, args...)})
}

// begin reads the head and holds it against the newest batch.
func (g *aggregate) begin(v *history.View) error {
	head, ok, err := v.Head(g.key)
	if err != nil {
		return err
	}
	if !ok {
		g.find(pb.FindingKind_FINDING_KIND_HEAD, 0, 0, "expected a head, since there are batches, found none; they are not checked")
		g.finished = true
		return nil
	}
	g.head, g.incarnation, g.target, g.next = head, head.Incarnation, head.Version, max(head.Floor, 1)
	if head.Position > g.a.applied.Position {
		g.find(pb.FindingKind_FINDING_KIND_HEAD, 0, 0, "expected a position of at most %d, which the node has applied, found %d", g.a.applied.Position, head.Position)
	}
	if head.Deleted {
		return nil
	}
	return g.checkHead(v)
}

// resume goes on in another view: what was trimmed or deleted since is not there any more.
func (g *aggregate) resume(v *history.View) error {
	head, ok, err := v.Head(g.key)
	if err != nil {
		return err
	}
	if !ok {
		g.find(pb.FindingKind_FINDING_KIND_HEAD, 0, 0, "expected the head that was there a moment ago, found none")
		g.finished = true
		return nil
	}
	if g.finished = head.Deleted != g.head.Deleted || head.Incarnation != g.incarnation; g.finished {
		return nil
	}
	g.head = head
	if head.Floor > g.next {
		g.next, g.before = head.Floor, link{}
		g.from = place{g.incarnation, head.Floor}
	}
	return nil
}

// checkHead holds the head against the newest batch, which the walk checks, and the mark of
// its writer.
func (g *aggregate) checkHead(v *history.View) error {
	stored, ok, err := v.Batch(g.key, g.head.Incarnation, g.head.Version)
	if err != nil || !ok {
		return err // missing: the walk says so
	}
	var b record.BatchView
	if record.ViewBatch(stored, &b) != nil || !g.isAt(&b, g.head.Incarnation, g.head.Version) {
		return nil // the walk says so
	}
	want := g.head
	want.EventCount = b.FirstEventNumber + uint64(b.EventCount) - 1
	want.LastClient, want.Chain, want.CommittedAt = string(b.ClientID), record.Hash(b.Chain), b.CommittedAt
	want.Position = max(want.Position, b.Position) // a trim has a later one
	if want.LastMark, err = v.Mark(g.key, want.LastClient); err != nil {
		return err
	}
	if want != g.head {
		g.find(pb.FindingKind_FINDING_KIND_HEAD, g.head.Incarnation, g.head.Version,
			"expected the head to be what the newest batch says: event count %d, position %d, last client %q with mark %d, committed at %d, chain hash %x; found %d, %d, %q with %d, %d, %x",
			want.EventCount, want.Position, want.LastClient, want.LastMark, want.CommittedAt, want.Chain,
			g.head.EventCount, g.head.Position, g.head.LastClient, g.head.LastMark, g.head.CommittedAt, g.head.Chain)
	}
	return nil
}

// walk checks batches from where the walk before it ended.
func (g *aggregate) walk(v *history.View, more func() bool) error {
	for s, err := range v.Stored(g.key, g.from.incarnation, g.from.version) {
		if err != nil {
			return err
		}
		if !g.head.Deleted && s.Incarnation == g.incarnation && s.Version > g.target {
			break // written since
		}
		if err := g.stored(v, s); err != nil {
			return err
		}
		g.from = place{s.Incarnation, s.Version + 1}
		if !more() || len(g.a.found) >= maxFindings {
			return nil
		}
	}
	if !g.head.Deleted {
		g.missing(g.target + 1)
	}
	g.finished = true
	return nil
}

// missing says which versions are not there, if the next one that is there is not the one that
// must come next.
func (g *aggregate) missing(found uint64) {
	switch {
	case found <= g.next:
		return
	case found == g.next+1:
		g.find(pb.FindingKind_FINDING_KIND_MISSING, g.incarnation, g.next, "expected version %d, found none", g.next)
	default:
		g.find(pb.FindingKind_FINDING_KIND_MISSING, g.incarnation, g.next, "expected versions %d to %d, found none", g.next, found-1)
	}
	g.next, g.before = found, link{}
}

// stored checks what stands at one key.
func (g *aggregate) stored(v *history.View, s history.Stored) error {
	g.a.progress.Batches++
	g.a.progress.Bytes += uint64(len(s.Value))
	if g.head.Deleted || s.Incarnation != g.incarnation || s.Version < max(g.head.Floor, 1) {
		g.find(pb.FindingKind_FINDING_KIND_LEFTOVER, s.Incarnation, s.Version, "expected no batch that a trim or a delete took, found one")
		return nil
	}
	g.missing(s.Version)
	before := g.before
	g.next, g.before = s.Version+1, link{}
	var b record.BatchView
	if err := record.ViewBatch(s.Value, &b); err != nil {
		g.find(pb.FindingKind_FINDING_KIND_CHANGED, s.Incarnation, s.Version, "expected a batch, found: %v", err)
		return nil
	}
	if !g.isAt(&b, s.Incarnation, s.Version) {
		g.find(pb.FindingKind_FINDING_KIND_MISPLACED, s.Incarnation, s.Version, "expected version %d of %s, incarnation %d; found version %d of %s/%s/%s, incarnation %d, position %d",
			s.Version, g.key, s.Incarnation, b.Version, b.Org, b.Type, b.ID, b.Incarnation, b.Position)
		return nil
	}
	if err := record.VerifyBatch(s.Value); err != nil {
		g.find(pb.FindingKind_FINDING_KIND_CHANGED, s.Incarnation, s.Version, "expected the content that was hashed when it was written, found: %v", err)
		return nil
	}
	events, problem := g.events(&b)
	if problem != "" {
		g.find(pb.FindingKind_FINDING_KIND_CHANGED, s.Incarnation, s.Version, "%s", problem)
		return nil
	}
	g.a.progress.Events += uint64(b.EventCount)
	g.follows(&b, before)
	g.before = link{
		set: true, version: b.Version, chain: record.Hash(b.Chain), nextEvent: b.FirstEventNumber + uint64(b.EventCount),
		position: b.Position, committedAt: b.CommittedAt,
	}
	return g.rows(v, &b, events)
}

// isAt says whether a batch is of this aggregate and place.
func (g *aggregate) isAt(b *record.BatchView, incarnation uint32, version uint64) bool {
	return b.Incarnation == incarnation && b.Version == version &&
		record.MakeKey(string(b.Org), string(b.Type), string(b.ID)) == g.key
}

// events parses the events of a batch and says what cannot be of it.
func (g *aggregate) events(b *record.BatchView) (events []record.EventView, problem string) {
	rest := b.Events
	for uint32(len(events)) < b.EventCount {
		var e record.EventView
		var err error
		if rest, err = record.NextEvent(rest, &e); err != nil {
			return nil, fmt.Sprintf("expected %d events, found %d and: %v", b.EventCount, len(events), err)
		}
		events = append(events, e)
	}
	switch {
	case len(events) == 0 || len(rest) > 0:
		return nil, fmt.Sprintf("expected at least one event and nothing behind the last, found %d and %d bytes", len(events), len(rest))
	case b.Position < b.CommitFirst || b.Position-b.CommitFirst >= uint64(b.CommitCount):
		return nil, fmt.Sprintf("expected one of the %d positions from %d on, found %d", b.CommitCount, b.CommitFirst, b.Position)
	case b.Position > g.a.applied.Position || b.CommittedAt > g.a.applied.CommittedAt:
		return nil, fmt.Sprintf("expected nothing newer than position %d at %d, which the node has applied, found position %d at %d",
			g.a.applied.Position, g.a.applied.CommittedAt, b.Position, b.CommittedAt)
	}
	return events, ""
}

// follows checks that a batch goes on from the one before it.
func (g *aggregate) follows(b *record.BatchView, before link) {
	unlinked := func(format string, args ...any) {
		g.find(pb.FindingKind_FINDING_KIND_UNLINKED, b.Incarnation, b.Version, format, args...)
	}
	prev := record.Hash(b.Prev)
	switch {
	case b.Version == 1 && (prev != record.Hash{} || b.FirstEventNumber != 1):
		unlinked("expected the first batch to begin with event 1 behind a hash of zeros, found event %d behind %x", b.FirstEventNumber, prev)
	case !before.set:
	case prev != before.chain:
		unlinked("expected it to go on from version %d with chain hash %x, found it to go on from %x: one of the two is not what was written", before.version, before.chain, prev)
	case b.FirstEventNumber != before.nextEvent:
		unlinked("expected event number %d, which follows on version %d, found %d", before.nextEvent, before.version, b.FirstEventNumber)
	case b.Position <= before.position || b.CommittedAt < before.committedAt:
		unlinked("expected it behind version %d, which is at position %d at %d, found it at position %d at %d", before.version, before.position, before.committedAt, b.Position, b.CommittedAt)
	}
	if b.Version == g.head.Floor && b.Position != g.head.FirstLive {
		g.find(pb.FindingKind_FINDING_KIND_HEAD, b.Incarnation, b.Version, "expected the head's first live position to be %d, where version %d is, found %d", b.Position, b.Version, g.head.FirstLive)
	}
	if b.Version == 1 && b.CommittedAt != g.head.CreatedAt {
		g.find(pb.FindingKind_FINDING_KIND_HEAD, b.Incarnation, b.Version, "expected the head to say that it was created at %d, when version 1 was committed, found %d", b.CommittedAt, g.head.CreatedAt)
	}
}
