package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
)

// VerifyOptions say how to verify.
type VerifyOptions struct {
	// Found is called with each finding, as it is found; required.
	Found func(Finding)
	// Doing is called with what is being checked; nil = nobody wants to know.
	Doing func(what string)
	// Read is called with how many bytes were read since the last call; nil = nobody wants to
	// know. What is read twice counts twice.
	Read func(bytes int64)
}

// Report is what verifying came to.
type Report struct {
	// Damage and Notes are how many findings were of each sort.
	Damage int `json:"damage"`
	Notes  int `json:"notes"`
	// What was checked. Blocks are those of tables and blob files. Applied is how many of the
	// entries were decided over anew and compared with the history.
	Entries   uint64 `json:"entries,string"`
	Blocks    uint64 `json:"blocks,string"`
	Heads     uint64 `json:"aggregates,string"`
	Batches   uint64 `json:"batches,string"`
	Rows      uint64 `json:"writer_rows,string"`
	Positions uint64 `json:"positions,string"`
	Applied   uint64 `json:"entries_applied_anew,string"`
}

// Verify checks everything in a data directory that no node has open, and changes nothing. An
// error means that it could not be done, not that something is wrong.
func Verify(ctx context.Context, dir string, o VerifyOptions) (r Report, err error) {
	d, err := Open(dir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	v := &verifier{ctx: ctx, o: o, d: d, report: &r, checked: map[fileID]int{}}
	return r, v.directory()
}

// verifier checks one directory.
type verifier struct {
	ctx    context.Context
	o      VerifyOptions
	d      *Directory
	report *Report
	// checked are the files whose blocks were, and how much was wrong with each: a snapshot's
	// are those of the history, linked.
	checked map[fileID]int

	log     logSummary
	applied Applied
	// sound: the history was opened, and so was applied found.
	sound bool
}

func (v *verifier) found(f Finding) {
	if f.Damage {
		v.report.Damage++
	} else {
		v.report.Notes++
	}
	v.o.Found(f)
}

// damage is a finding about a file as a whole.
func (v *verifier) damage(file, format string, args ...any) {
	v.found(Finding{Damage: true, File: file, Offset: -1, Text: fmt.Sprintf(format, args...)})
}

func (v *verifier) doing(format string, args ...any) error {
	if v.o.Doing != nil {
		v.o.Doing(fmt.Sprintf(format, args...))
	}
	return v.ctx.Err()
}

func (v *verifier) read(n int) {
	if v.o.Read != nil {
		v.o.Read(int64(n))
	}
}

func (v *verifier) directory() error {
	if err := v.identity(); err != nil {
		return err
	}
	stable, err := v.stable()
	if err != nil {
		return err
	}
	if err := v.tail(); err != nil {
		return err
	}
	if v.d.History != "" {
		applied, sound, err := v.history(v.d.History)
		if err != nil {
			return err
		}
		v.applied, v.sound = applied, sound
	}
	checkpoints := map[string]Applied{}
	for i := range v.d.Snapshots {
		s := &v.d.Snapshots[i]
		if v.meta(s); s.Meta == nil {
			continue
		}
		applied, sound, err := v.history(s.history())
		if err != nil {
			return err
		}
		if sound {
			checkpoints[s.Dir] = applied
			v.checkpoint(s, applied)
		}
	}
	v.together(stable)
	return v.replay(checkpoints)
}

// identity checks identity.json.
func (v *verifier) identity() error {
	path := v.d.path("identity.json")
	switch err := v.d.identityErr; {
	case errors.Is(err, fs.ErrNotExist):
		v.damage(path, "expected it to say which cluster the directory belongs to, found no such file")
		return nil
	case errors.As(err, new(*fs.PathError)):
		return err
	case err != nil:
		v.damage(path, "expected the identity of a node, found %v", err)
		return nil
	}
	id := v.d.Identity
	named := isHex(id.ClusterID, 16) && isHex(id.Timeline, 16)
	if id.Format != 2 || id.NodeID == "" || !isHex(id.Generation, 4) ||
		!slices.Contains([]string{"empty", "founding", "member"}, id.State) || (id.State == "empty") == named {
		v.damage(path, "expected format 2, a node id, a generation of 8 hex digits and, unless the state is empty, a cluster and a timeline of 32, found %+v", *id)
	}
	if id.State == "member" {
		for _, name := range []string{"tail", "raft.db"} {
			if !exists(v.d.path(name)) {
				v.damage(v.d.path(name), "expected it in the directory of a member, found no such file")
			}
		}
	}
	return nil
}

// stable checks the stable store.
func (v *verifier) stable() (*Stable, error) {
	path := v.d.path("raft.db")
	if err := v.doing("%s", path); err != nil {
		return nil, err
	}
	s, problems, err := readStable(path)
	if err != nil {
		return nil, err
	}
	for _, p := range problems {
		v.found(p.finding(path))
	}
	if len(problems) > 0 {
		return nil, nil
	}
	return s, nil
}

// meta checks a snapshot's meta.json.
func (v *verifier) meta(s *Snapshot) {
	m, path := s.Meta, s.metaFile()
	switch {
	case m == nil:
		v.damage(path, "expected what the snapshot stands for, found %v", s.err)
	case m.Format != 1 || m.Version != 1 || m.ID != filepath.Base(s.Dir):
		v.damage(path, "expected format 1 and the name of its directory, found format %d and %q", m.Format, m.ID)
	case m.AppliedIndex > m.Index || m.AppliedIndex > m.CheckpointIndex:
		v.damage(path, "expected an applied_index of at most its index %d and its checkpoint_index %d, found %d", m.Index, m.CheckpointIndex, m.AppliedIndex)
	case v.d.Identity != nil && (m.ClusterID != v.d.Identity.ClusterID || m.Timeline != v.d.Identity.Timeline):
		v.damage(path, "expected cluster %s and timeline %s, as identity.json says, found %s and %s", v.d.Identity.ClusterID, v.d.Identity.Timeline, m.ClusterID, m.Timeline)
	}
}

// checkpoint holds a snapshot's checkpoint against what the snapshot says of it.
func (v *verifier) checkpoint(s *Snapshot, a Applied) {
	if m := s.Meta; a.Index < m.AppliedIndex || a.Index > m.CheckpointIndex {
		v.damage(s.history(), "expected a checkpoint that ends between entries %d and %d, as %s says, found one that ends at %d",
			m.AppliedIndex, m.CheckpointIndex, s.metaFile(), a.Index)
	}
}

// together checks what the files say of each other, as a node does when it starts.
func (v *verifier) together(st *Stable) {
	tailDir, raftDB := v.d.path("tail"), v.d.path("raft.db")
	var index, term uint64 // of the newest snapshot
	reached := v.applied.Index
	m := v.d.newest()
	if m != nil {
		index, term = m.Index, m.Term
		if m.Received && reached <= m.CheckpointIndex {
			reached = m.Index
		}
		if v.sound && v.applied.Index < m.AppliedIndex && !m.Pending {
			v.found(Finding{File: v.d.History, Offset: -1, Text: fmt.Sprintf("it ends at entry %d, before entry %d that the newest snapshot stands for; the next start takes it from the snapshot", v.applied.Index, m.AppliedIndex)})
		}
	}
	id := v.d.Identity
	if id != nil && v.sound && v.applied.Timeline != "" && v.applied.Timeline != id.Timeline {
		v.damage(v.d.History, "expected timeline %s, as identity.json says, found %s", id.Timeline, v.applied.Timeline)
	}
	l := &v.log
	// A log that is begun anew behind a received snapshot is only complete once that is settled.
	if l.complete && v.sound && (m == nil || !m.Pending) {
		switch {
		case l.first > max(index, 1):
			v.damage(tailDir, "expected entries from index %d on, found none before %d: the history ends at entry %d, the newest snapshot at %d", max(index, 1), l.first, v.applied.Index, index)
		case l.last < max(reached, index):
			v.damage(tailDir, "expected entries up to index %d at least, found %d to be the last one: the history ends at entry %d, the newest snapshot at %d", max(reached, index), l.last, v.applied.Index, index)
		case m != nil && l.snapshotTerm != term:
			v.damage(tailDir, "expected entry %d of term %d, which the newest snapshot is of, found one of term %d", index, term, l.snapshotTerm)
		}
	}
	if l.complete && id != nil && id.LogBegun && l.last == 0 {
		v.damage(tailDir, "expected entries, as identity.json says that there were some, found none")
	}
	if st == nil {
		return
	}
	current := st.Number("CurrentTerm")
	if current < l.lastTerm && l.last > 1 {
		v.found(Finding{Damage: true, File: raftDB, Offset: -1, Key: `"CurrentTerm"`, Text: fmt.Sprintf("expected at least term %d, of which the log has an entry, found %d", l.lastTerm, current)})
	}
	if vote := st.Number("LastVoteTerm"); vote > current {
		v.found(Finding{Damage: true, File: raftDB, Offset: -1, Key: `"LastVoteTerm"`, Text: fmt.Sprintf("expected a vote of at most the current term %d, found one of %d", current, vote)})
	}
}
