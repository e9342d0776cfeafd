package inspect

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
)

// Query says which part of a directory's content is wanted. Zero values leave it open.
type Query struct {
	// Aggregate limits to one aggregate; empty = all.
	Aggregate Aggregate
	// From and To are the first and the last that are wanted, by what the list is in order of:
	// indexes of entries, versions of batches, positions.
	From, To uint64
}

func (q *Query) wants(a Aggregate, n uint64) bool {
	return (q.Aggregate == "" || q.Aggregate == a) && n >= q.From && (q.To == 0 || n <= q.To)
}

// A Source says where something was found.
type Source bool

const (
	// InHistory: the history holds it.
	InHistory Source = false
	// InTail: it is in entries that the history lacks, as a crash leaves them: the node will
	// apply them when it starts, unless the leader of its cluster has others in their place.
	InTail Source = true
)

// String is "history" or "tail".
func (s Source) String() string {
	if s == InTail {
		return "tail"
	}
	return "history"
}

// DamageError is what a reader met that is not what was written.
type DamageError struct{ Finding Finding }

func (e *DamageError) Error() string { return e.Finding.String() }

// Damaged says whether an error of this package is about what a directory holds, rather than
// about the system that it is read on.
func Damaged(err error) bool {
	var d *DamageError
	return errors.As(err, &d) || errors.Is(err, errForm) || errors.Is(err, errPanic) || pebble.IsCorruptionError(err)
}

// Command reads an entry of type command.
func (e *Entry) Command() (Command, error) {
	c, err := parseCommand(e.Data)
	return c, e.error(err)
}

// Members reads an entry of type configuration.
func (e *Entry) Members() ([]Member, error) {
	members, err := parseMembers(e.Data)
	return members, e.error(err)
}

func (e *Entry) error(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: offset %d (index %d): %w", e.File, e.Offset, e.Index, err)
}

// Entries calls fn for every entry of the tail, in order, with what it is to the history. torn
// says what of the end was cut short by a crash, if anything was. Data is only valid during the
// call.
func (d *Directory) Entries(q Query, fn func(Entry, Source) error) (torn string, err error) {
	applied := uint64(0)
	h, err := d.openHistory()
	if err != nil {
		return "", err
	}
	if h != nil {
		applied = h.applied.Index
		if err := h.close(); err != nil {
			return "", err
		}
	}
	return d.walkTail(func(e Entry) error {
		if !q.wants("", e.Index) {
			return nil
		}
		return fn(e, Source(e.Index > applied))
	})
}

// openHistory opens what the node will begin with: its history, or the newest snapshot's
// checkpoint if the history lacks what that stands for. nil: there is neither.
func (d *Directory) openHistory() (s *store, err error) {
	if d.History != "" {
		if s, err = openStore(d.History); err != nil {
			return nil, err
		}
	}
	m := d.newest()
	if m == nil || s != nil && s.applied.Index >= m.AppliedIndex {
		return s, nil
	}
	if s != nil {
		if err := s.close(); err != nil {
			return nil, err
		}
	}
	return openStore(d.Snapshots[len(d.Snapshots)-1].history())
}

// errTorn ends a walk at what a crash cut short.
var errTorn = errors.New("torn")

// walkTail reads the tail up to what a crash cut short; damage is an error.
func (d *Directory) walkTail(fn func(Entry) error) (torn string, err error) {
	t, err := openTail(d.path("tail"))
	if err != nil || t == nil {
		return "", err
	}
	err = t.walk(func(e Entry) error {
		if e.Index < t.state.first {
			return nil // deleted, in a segment that holds later ones as well
		}
		return fn(e)
	}, func(b broken) error {
		f, isTorn := t.finding(b)
		if !isTorn {
			return &DamageError{f}
		}
		torn = f.String()
		return errTorn
	})
	if errors.Is(err, errTorn) {
		err = nil
	}
	return torn, err
}

// Content is what Read hands on. Nil functions are not called.
type Content struct {
	Batch  func(*Batch, Source) error
	Head   func(*Head, Source) error
	Row    func(*Row, Source) error
	Change func(Change, Source) error
}

// Read calls c's functions for what the directory holds: first what is in the history, in the
// order of its keys, then what entries of the tail add to that, in the order of the log. What
// entries of the tail trim, delete or forget is left out. A head that the tail changes comes
// once, last. Query's From and To are versions, or positions for Change; heads are wanted
// whatever their version is. Where the tail is damaged, it counts up to there, and the error
// comes behind what could be read.
func (d *Directory) Read(q Query, c Content) (applied Applied, err error) {
	h, err := d.openHistory()
	if err != nil {
		return applied, err
	}
	if h != nil {
		defer func() { err = errors.Join(err, h.close()) }()
	}
	end := newReplay(h)
	_, err = d.walkTail(end.entry)
	if c.Batch != nil || c.Row != nil || c.Change != nil {
		if again := d.readContent(q, c, h, end); again != nil {
			err = again
		}
	}
	if c.Head != nil && err == nil {
		err = h.readHeads(q, c.Head, end)
	}
	return end.applied, err
}

// readContent is Read for all but heads; end is what the tail leads to.
func (d *Directory) readContent(q Query, c Content, h *store, end *replay) error {
	if err := h.read(q, c, end); err != nil {
		return err
	}
	r := newReplay(h)
	if c.Batch != nil {
		r.onBatch = func(b *Batch) error {
			if !end.keeps(b) {
				return nil
			}
			return wanted(&q, b.Aggregate, b.Version, func() error { return c.Batch(b, InTail) })
		}
	}
	if c.Row != nil {
		r.onRow = func(w *Row) error {
			if !end.remembers(w) {
				return nil
			}
			return wanted(&q, w.Aggregate, w.Version, func() error { return c.Row(w, InTail) })
		}
	}
	if c.Change != nil {
		r.onChange = func(ch Change) error {
			return wanted(&q, ch.Aggregate, ch.Position, func() error { return c.Change(ch, InTail) })
		}
	}
	_, err := d.walkTail(r.entry)
	return err
}

func wanted(q *Query, a Aggregate, n uint64, fn func() error) error {
	if !q.wants(a, n) {
		return nil
	}
	return fn()
}

// read hands on what a history holds and is still there at end.
func (s *store) read(q Query, c Content, end *replay) error {
	if s == nil {
		return nil
	}
	at := func(tag string) []byte { return append([]byte(tag), q.Aggregate...) }
	if c.Batch != nil {
		err := s.each(at(tagBatch), func(key, value []byte) error {
			b, err := parseBatch(value)
			if err != nil {
				return s.keyError(key, err)
			}
			if !end.keeps(&b) {
				return nil
			}
			return wanted(&q, b.Aggregate, b.Version, func() error { return c.Batch(&b, InHistory) })
		})
		if err != nil {
			return err
		}
	}
	if c.Change != nil {
		err := s.each([]byte(tagPosition), func(key, value []byte) error {
			list, err := parseChanges(key, value)
			if err != nil {
				return s.keyError(key, err)
			}
			for _, ch := range list {
				if err := wanted(&q, ch.Aggregate, ch.Position, func() error { return c.Change(ch, InHistory) }); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if c.Row == nil {
		return nil
	}
	return s.each(at(tagRow), func(key, value []byte) error {
		w, err := parseRow(key, value)
		if err != nil {
			return s.keyError(key, err)
		}
		if !end.remembers(&w) {
			return nil
		}
		return wanted(&q, w.Aggregate, w.Version, func() error { return c.Row(&w, InHistory) })
	})
}

// readHeads hands on the heads of a history, with what entries of the tail changed.
func (s *store) readHeads(q Query, fn func(*Head, Source) error, r *replay) error {
	fromTail := map[Aggregate]bool{}
	for _, a := range r.changed {
		fromTail[a] = true
	}
	if s != nil {
		err := s.each(append([]byte(tagHead), q.Aggregate...), func(key, value []byte) error {
			h, err := parseHead(key, value)
			if err != nil {
				return s.keyError(key, err)
			}
			if fromTail[h.Aggregate] {
				return nil
			}
			return fn(&h, InHistory)
		})
		if err != nil {
			return err
		}
	}
	for _, a := range r.changed {
		if !fromTail[a] || q.Aggregate != "" && q.Aggregate != a {
			continue
		}
		fromTail[a] = false
		if err := fn(r.heads[a], InTail); err != nil {
			return err
		}
	}
	return nil
}

// Raft is what a directory holds of raft's state.
type Raft struct {
	Identity *Identity
	// CurrentTerm, VoteTerm and Vote are in the stable store; zero if they never were.
	CurrentTerm, VoteTerm uint64
	Vote                  string
	// FirstIndex to LastIndex are in the tail, 0 and 0 if it is empty. What is up to
	// SyncedIndex had been flushed.
	FirstIndex, LastIndex, LastTerm, SyncedIndex uint64
	// Torn says what of the tail's end was cut short by a crash.
	Torn string
	// Applied is how far the history is.
	Applied Applied
	// Members are those of the newest configuration, which may not be committed yet, and
	// ConfigurationIndex is the entry that it is from.
	Members            []Member
	ConfigurationIndex uint64
	Snapshots          []Snapshot
}

// Raft reads raft's state.
func (d *Directory) Raft() (Raft, error) {
	out := Raft{Identity: d.Identity, Snapshots: d.Snapshots}
	if d.identityErr != nil {
		return out, d.identityErr
	}
	st, problems, err := readStable(d.path("raft.db"))
	if err != nil {
		return out, err
	}
	if len(problems) > 0 {
		return out, &DamageError{problems[0].finding(d.path("raft.db"))}
	}
	if st != nil {
		out.CurrentTerm, out.VoteTerm, out.Vote = st.Number("CurrentTerm"), st.Number("LastVoteTerm"), string(st.Values["LastVoteCand"])
	}
	for i := range d.Snapshots {
		if d.Snapshots[i].err != nil {
			return out, d.Snapshots[i].err
		}
	}
	if m := d.newest(); m != nil {
		out.Members, out.ConfigurationIndex = m.Configuration.Servers, m.ConfigurationIndex
	}
	t, err := openTail(d.path("tail"))
	if err != nil {
		return out, err
	}
	if t != nil {
		out.SyncedIndex = t.state.synced
	}
	if out.Torn, err = d.walkTail(func(e Entry) error {
		if out.FirstIndex == 0 {
			out.FirstIndex = e.Index
		}
		out.LastIndex, out.LastTerm = e.Index, e.Term
		if e.Type != TypeConfiguration || e.Index < out.ConfigurationIndex {
			return nil
		}
		members, err := e.Members()
		if err != nil {
			return err
		}
		out.Members, out.ConfigurationIndex = members, e.Index
		return nil
	}); err != nil {
		return out, err
	}
	h, err := d.openHistory()
	if err != nil || h == nil {
		return out, err
	}
	out.Applied = h.applied
	return out, h.close()
}

// parseMembers reads the data of an entry of type configuration. raft panics on what is none.
func parseMembers(data []byte) (members []Member, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the configuration is %w: %v", errForm, p)
		}
	}()
	for _, s := range raft.DecodeConfiguration(slices.Clone(data)).Servers {
		members = append(members, Member{Suffrage: int(s.Suffrage), ID: string(s.ID), Address: string(s.Address)})
	}
	return members, nil
}

// NodeID is the part of a member's id that operators know.
func (m Member) NodeID() string {
	node, _, _ := strings.Cut(m.ID, "#")
	return node
}
