package inspect

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"lukechampine.com/blake3"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// replay decides over entries on top of a history, by the contract (docs/contract.md section 2),
// as the node will when it applies them. It keeps the heads and marks that change, and hands on
// everything else.
type replay struct {
	base    *store // nil = nothing
	applied Applied
	heads   map[Aggregate]*Head // nil = never existed
	marks   map[string]uint64
	// recorded are the rows that entries made, by the prefix of the writer and the sequence.
	recorded map[string]struct{}
	// forgotten are the aggregates whose writers were forgotten, and at which position last: what
	// base has of them is over.
	forgotten map[Aggregate]uint64
	// written are the positions of the batches that entries made, by their keys.
	written map[string]uint64
	// schemas are all of them, by their keys, each as a hash of what it says, and revisions how
	// many each org and type has; nil until something asks for them.
	schemas   map[string]Hash
	revisions map[string]uint64
	// changed are the aggregates that entries changed, in the order of their first change.
	changed []Aggregate

	onBatch  func(*Batch) error
	onRow    func(*Row) error
	onChange func(Change) error
}

func newReplay(base *store) *replay {
	r := &replay{base: base, heads: map[Aggregate]*Head{}, marks: map[string]uint64{}, recorded: map[string]struct{}{}, forgotten: map[Aggregate]uint64{}, written: map[string]uint64{}}
	if base != nil {
		r.applied = base.applied
	}
	return r
}

// entry applies one entry. Those that the history has change nothing.
func (r *replay) entry(e Entry) error {
	if e.Type != TypeCommand || e.Index <= r.applied.Index {
		return nil
	}
	cmd, err := e.Command()
	if err != nil {
		return err
	}
	for i := range cmd.Requests {
		if cmd.Term != e.Term {
			// Another leader than the one that admitted it took the entry over.
			r.refuse(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, 0, 0, 0)
			continue
		}
		if err := r.request(&cmd.Requests[i]); err != nil {
			return fmt.Errorf("entry %d: %w", e.Index, err)
		}
	}
	r.applied.Index, r.applied.Term = e.Index, e.Term
	return nil
}

// standing is what a write is judged by.
type standing struct {
	head *Head // nil = never existed
	mark uint64
	// afterMissing: the sequence that the write was sent behind on a stream is not recorded.
	afterMissing bool
}

func (s *standing) live() bool { return s.head != nil && !s.head.Deleted }

func (s *standing) version() uint64 {
	if s.head == nil || s.head.Deleted && s.head.Restart {
		return 0
	}
	return s.head.Version
}

func (r *replay) request(req *Request) error {
	switch req.Kind {
	case RequestAppend:
		return r.append(req)
	case RequestTrim:
		return r.trim(req)
	case RequestDelete:
		return r.remove(req)
	case RequestRegisterSchema:
		return r.register(req)
	}
	return &unknownRequest{req.Kind}
}

func (r *replay) append(req *Request) error {
	standings := make([]standing, len(req.Writes))
	for i := range req.Writes {
		var err error
		if standings[i], err = r.standing(&req.Writes[i], req.Client); err != nil {
			return err
		}
	}
	if code, i := judgeRequest(req, standings); code != 0 {
		r.refuse(code, i, standings[i].version(), standings[i].mark)
		return nil
	}
	for i := range req.Writes {
		revision, mismatch, err := r.schemaMismatch(&req.Writes[i])
		if err != nil {
			return err
		}
		if mismatch {
			r.refuse(pb.ErrorCode_ERROR_CODE_INTERNAL, i, revision, 0)
			return nil
		}
	}
	at := max(req.CommittedAt, r.applied.CommittedAt)
	r.applied.CommittedAt = at
	first := r.applied.Position + 1
	for i := range req.Writes {
		if err := r.write(req, i, standings[i].mark, first, at); err != nil {
			return err
		}
	}
	return nil
}

// judgeRequest applies the checks in their order: existence of all, then the versions of all,
// then the sequences of all. It returns the first that fails, 0 if none does.
func judgeRequest(req *Request, standings []standing) (code pb.ErrorCode, write int) {
	for i := range req.Writes {
		switch s := &standings[i]; {
		case s.live():
		case s.head != nil && !s.head.Recreatable:
			return pb.ErrorCode_ERROR_CODE_AGGREGATE_RECREATE_NOT_ALLOWED, i
		case !req.Writes[i].AllowCreate:
			return pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_EXISTS, i
		}
	}
	for i := range req.Writes {
		expected := req.Writes[i].Expected
		if expected == nil {
			continue
		}
		want := uint64(0)
		if standings[i].live() {
			want = standings[i].version()
		}
		if *expected != want {
			return pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION, i
		}
	}
	for i := range req.Writes {
		w := &req.Writes[i]
		lowest, _ := w.sequences()
		switch s := &standings[i]; {
		case w.Enforce && lowest <= s.mark:
			return pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION, i
		case w.Enforce && w.Previous != nil && *w.Previous != s.mark, s.afterMissing:
			return pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP, i
		}
	}
	return 0, 0
}

// sequences returns the lowest and the highest client_seq of a write.
func (w *Write) sequences() (lowest, highest uint64) {
	lowest = w.Events[0].ClientSeq
	for i := range w.Events {
		lowest, highest = min(lowest, w.Events[i].ClientSeq), max(highest, w.Events[i].ClientSeq)
	}
	return lowest, highest
}

// write makes the batch and the rows of one write of a request that passed.
func (r *replay) write(req *Request, i int, mark, first uint64, at int64) error {
	w := &req.Writes[i]
	h, err := r.head(w.Aggregate)
	if err != nil {
		return err
	}
	if h == nil {
		h = &Head{Aggregate: w.Aggregate}
		r.heads[w.Aggregate] = h
	}
	r.applied.Position++
	if h.Incarnation == 0 || h.Deleted {
		if h.Restart {
			h.Version, h.EventCount, h.Chain = 0, 0, Hash{}
		}
		h.Deleted, h.Recreatable, h.Restart = false, false, false
		h.Incarnation++
		h.Floor, h.FirstLive, h.CreatedAt = h.Version+1, r.applied.Position, at
	}
	b := Batch{
		Aggregate: w.Aggregate, Incarnation: h.Incarnation, Version: h.Version + 1, Position: r.applied.Position,
		CommitFirst: first, CommitCount: uint32(len(req.Writes)), Client: req.Client, CommittedAt: at, FirstEvent: h.EventCount + 1,
		Events: w.Events, Previous: h.Chain,
	}
	b.Chain = b.hash(w.raw)
	b.Computed = b.Chain
	lowest, highest := w.sequences()
	r.setMark(w.Aggregate, h.LastClient, h.LastMark)
	h.LastClient, h.LastMark = req.Client, max(mark, highest)
	r.setMark(w.Aggregate, h.LastClient, h.LastMark)
	h.Version, h.CommittedAt, h.Position, h.Chain = b.Version, at, b.Position, b.Chain
	h.EventCount += uint64(len(w.Events))
	if r.onBatch != nil {
		for i := range b.Events {
			b.Events[i].Message.EventNumber = b.FirstEvent + uint64(i)
		}
		if err := r.onBatch(&b); err != nil {
			return err
		}
	}
	for _, row := range b.rows(lowest, highest) {
		r.recorded[string(sequenceKey(row.Aggregate, row.Client, row.ClientSeq))] = struct{}{}
		if r.onRow == nil {
			continue
		}
		if err := r.onRow(&row); err != nil {
			return err
		}
	}
	if r.onChange != nil {
		if err := r.onChange(Change{Position: b.Position, Aggregate: b.Aggregate, Incarnation: b.Incarnation, Version: b.Version, Kind: ChangeBatch}); err != nil {
			return err
		}
	}
	r.changed = append(r.changed, w.Aggregate)
	r.written[string(batchKey(b.Aggregate, b.Incarnation, b.Version))] = b.Position
	d := append(r.applied.Digest[:], 1)
	d = append(d, b.Chain[:]...)
	for i := range w.Hashes {
		d = append(d, w.Hashes[i][:]...)
	}
	r.applied.Digest = blake3.Sum256(d)
	return nil
}

// refuse extends the digest by a refusal.
func (r *replay) refuse(code pb.ErrorCode, write int, version, mark uint64) {
	d := append(r.applied.Digest[:], 0)
	d = binary.BigEndian.AppendUint32(d, uint32(code))
	d = binary.BigEndian.AppendUint32(d, uint32(write))
	d = binary.BigEndian.AppendUint64(d, version)
	d = binary.BigEndian.AppendUint64(d, mark)
	r.applied.Digest = blake3.Sum256(d)
}

func (r *replay) standing(w *Write, client string) (s standing, err error) {
	if s.head, err = r.head(w.Aggregate); err == nil && s.head != nil {
		s.mark, err = r.mark(w.Aggregate, client)
	}
	if err != nil || w.After == nil || *w.After == s.mark {
		return s, err
	}
	key := sequenceKey(w.Aggregate, client, *w.After)
	_, found := r.recorded[string(key)]
	if !found && r.base != nil && r.forgotten[w.Aggregate] == 0 {
		_, found, err = r.base.first(key, 8)
	}
	s.afterMissing = !found
	return s, err
}

// sequenceKey is what the keys of all rows of a sequence begin with.
func sequenceKey(a Aggregate, client string, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(writerPrefix(a, client), ^seq)
}

// head returns the head of an aggregate, nil if it never existed.
func (r *replay) head(a Aggregate) (*Head, error) {
	if h, ok := r.heads[a]; ok || r.base == nil {
		return h, nil
	}
	key := headKey(a)
	v, err := r.base.get(key)
	if err == nil && v != nil {
		var h Head
		if h, err = parseHead(key, v); err == nil {
			r.heads[a] = &h
			return &h, nil
		}
	}
	if err != nil {
		return nil, r.base.keyError(key, err)
	}
	r.heads[a] = nil
	return nil, nil
}

// mark returns the highest sequence of a writer on an aggregate: that of its first row.
func (r *replay) mark(a Aggregate, client string) (uint64, error) {
	prefix := writerPrefix(a, client)
	if m, ok := r.marks[string(prefix)]; ok || r.base == nil || r.forgotten[a] != 0 {
		return m, nil
	}
	key, found, err := r.base.first(prefix, 16)
	m := uint64(0)
	if found {
		m = ^binary.BigEndian.Uint64(key[len(prefix):])
	}
	if err == nil {
		r.marks[string(prefix)] = m
	}
	return m, err
}

func (r *replay) setMark(a Aggregate, client string, m uint64) {
	if client != "" {
		r.marks[string(writerPrefix(a, client))] = m
	}
}

// first returns the first key with the prefix and so many bytes behind it.
func (s *store) first(prefix []byte, rest int) (key []byte, found bool, err error) {
	defer recovered(&err)
	it, err := s.db.NewIter(nil)
	if err != nil {
		return nil, false, err
	}
	if it.SeekGE(prefix) && len(it.Key()) == len(prefix)+rest && bytes.HasPrefix(it.Key(), prefix) {
		key, found = bytes.Clone(it.Key()), true
	}
	if err := it.Close(); err != nil {
		return nil, false, s.keyError(prefix, err)
	}
	return key, found, nil
}

// hash computes the chain hash of a batch whose canonical events are given.
func (b *Batch) hash(events []byte) Hash {
	be := binary.BigEndian
	p := append([]byte(nil), b.Previous[:]...)
	org, typ, id, _ := b.Aggregate.parts()
	for _, s := range []string{org, typ, id} {
		p = append(be.AppendUint32(p, uint32(len(s))), s...)
	}
	p = be.AppendUint32(p, b.Incarnation)
	p = be.AppendUint64(p, b.Version)
	p = be.AppendUint32(p, b.Shard)
	p = be.AppendUint64(p, b.Position)
	p = be.AppendUint64(p, b.CommitFirst)
	p = be.AppendUint32(p, b.CommitCount)
	p = append(be.AppendUint32(p, uint32(len(b.Client))), b.Client...)
	p = be.AppendUint64(p, uint64(b.CommittedAt))
	p = be.AppendUint64(p, b.FirstEvent)
	p = be.AppendUint32(p, uint32(len(b.Events)))
	return blake3.Sum256(append(p, events...))
}

// rows are the writer rows of a batch: one for each client_seq, that of its first event.
func (b *Batch) rows(lowest, highest uint64) []Row {
	uses := map[uint64]int{}
	for i := range b.Events {
		uses[b.Events[i].ClientSeq]++
	}
	var out []Row
	for i := range b.Events {
		e := &b.Events[i]
		n := uses[e.ClientSeq]
		if n == 0 {
			continue
		}
		uses[e.ClientSeq] = 0
		out = append(out, Row{
			Aggregate: b.Aggregate, Client: b.Client, ClientSeq: e.ClientSeq, Position: b.Position, Version: b.Version, Incarnation: b.Incarnation,
			EventIndex: uint32(i), EventNumber: b.FirstEvent + uint64(i), CommittedAt: b.CommittedAt, FirstSeq: lowest, LastSeq: highest,
			EventCount: uint32(len(b.Events)), CommitFirst: b.CommitFirst, CommitCount: b.CommitCount, EventID: e.EventID, Content: e.Content,
			Repeated: n > 1,
		})
	}
	return out
}

// sequences returns the lowest and the highest client_seq of a batch.
func (b *Batch) sequences() (lowest, highest uint64) {
	w := Write{Events: b.Events}
	return w.sequences()
}
