package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
)

// opened is the state of a backup, read with the store's own means from a copy of its files.
func opened(t *testing.T, b *Backup) (string, history.Applied) {
	t.Helper()
	dir := t.TempDir()
	if _, err := fillFrom(b)(dir); err != nil {
		t.Fatal(err)
	}
	s, err := history.Open(history.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	v := s.View()
	defer v.Release()
	text, err := dumpView(v)
	if err != nil {
		t.Fatal(err)
	}
	return text, v.Applied()
}

// fillFrom restores from a backup without an archive between them.
func fillFrom(b *Backup) func(dir string) (history.Applied, error) {
	return func(dir string) (history.Applied, error) {
		for _, f := range b.Files {
			r, err := b.Open(f)
			if err != nil {
				return b.Applied, err
			}
			w, err := os.Create(filepath.Join(dir, f.Name))
			if err != nil {
				return b.Applied, err
			}
			n, err := io.Copy(w, r)
			if err == nil && n != f.Size {
				err = fmt.Errorf("expected %d bytes in %s, found %d", f.Size, f.Name, n)
			}
			if err := errors.Join(err, r.Close(), w.Close()); err != nil {
				return b.Applied, err
			}
		}
		return b.Applied, nil
	}
}

func mustBackup(t *testing.T, s *Shard, o BackupOptions) *Backup {
	t.Helper()
	b, err := s.Backup(within(t, 20*time.Second), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.End(errors.New("the test is over")) })
	return b
}

// kept is what stands in a node's directory of backups.
func kept(t *testing.T, s *Shard) []string {
	t.Helper()
	entries, err := os.ReadDir(s.path("backups"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A backup is of one moment: what is written while it is read is not in it, and compactions
// do not take its files away.
func TestBackupIsOfOneMoment(t *testing.T) {
	s := openShard(t, Options{Dir: t.TempDir(), MemTableBytes: 64 << 10})
	defer func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	for i := range 200 {
		mustAppend(t, s, appendOf("a", fmt.Sprint(i%5), seqs(uint64(i+1))))
	}
	want := stateOf(t, s)
	b := mustBackup(t, s, BackupOptions{})
	for i := range 200 {
		mustAppend(t, s, appendOf("a", fmt.Sprint(i%5), seqs(uint64(i+201))))
	}
	if err := s.store.Flush(); err != nil {
		t.Fatal(err)
	}
	got, applied := opened(t, b)
	if got != want {
		t.Fatalf("expected the state before the backup, found another one:\n%s\n%s", got, want)
	}
	if id := s.identity(); b.Applied != applied || b.Applied.Position != 200 || !b.Confirmed || b.ClusterID != id.ClusterID || b.Timeline != id.Timeline || b.NodeID != "n1" || applied.Timeline != id.Timeline {
		t.Fatalf("expected a backup of position 200, found %+v, which holds %+v", b, applied)
	}
	b.Sent(7)
	b.End(nil)
	b.End(errors.New("too late"))
	if st := s.Stats().Backups; st.Running != 0 || st.Sent != 1 || st.Failed != 0 || st.Bytes != 7 || !st.LastSent.Equal(b.CreatedAt) {
		t.Fatalf("expected one backup, found %+v", st)
	}
	if names := kept(t, s); len(names) != 1 || names[0] != lastBackupFile {
		t.Fatalf("expected nothing to be left but %s, found %v", lastBackupFile, names)
	}
}

// However many are asked for, no more than two are made; the place and the files of each come
// free, however it ends, also at the next start. The time of the last one survives.
func TestBackupsAreBounded(t *testing.T) {
	dir := t.TempDir()
	s := openShard(t, Options{Dir: dir})
	mustAppend(t, s, appendOf("a", "1", seqs(1)))
	first, second := mustBackup(t, s, BackupOptions{}), mustBackup(t, s, BackupOptions{Local: true})
	for range 3 {
		_, err := s.Backup(context.Background(), BackupOptions{})
		wantCode(t, err, pb.ErrorCode_ERROR_CODE_SERVER_BUSY)
	}
	if st := s.Stats().Backups; st.Running != 2 || st.Limit != 2 || len(kept(t, s)) != 2 {
		t.Fatalf("expected two backups, found %+v and %v", st, kept(t, s))
	}
	first.End(nil)
	at := first.CreatedAt
	third := mustBackup(t, s, BackupOptions{})
	third.End(errors.New("the receiver has gone"))
	if st := s.Stats().Backups; st.Running != 1 || st.Failed != 1 || st.Sent != 1 {
		t.Fatalf("expected one of each, found %+v", st)
	}
	if second.Confirmed {
		t.Error("a local backup says that it was confirmed")
	}
	if err := s.Abandon(); err != nil {
		t.Fatal(err)
	}
	if err := second.Check(); err == nil {
		t.Error("a backup goes on although its node has stopped")
	}
	s = openShard(t, Options{Dir: dir})
	if names := kept(t, s); len(names) != 1 || !s.Stats().Backups.LastSent.Equal(at) {
		t.Fatalf("expected the next start to keep the time %v alone, found %v of %v", at, names, s.Stats().Backups.LastSent)
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestBackupOnAFullDisk(t *testing.T) {
	var free atomic.Int64
	free.Store(1 << 30)
	s := openShard(t, Options{Dir: t.TempDir(), MinFreeDiskBytes: 1 << 20, FreeDisk: func(string) (int64, error) { return free.Load(), nil }})
	defer s.Abandon()
	b := mustBackup(t, s, BackupOptions{})
	if err := b.Check(); err != nil {
		t.Fatal(err)
	}
	free.Store(1)
	await(t, "the disk to be full", func() bool { return s.disk.low() >= 0 })
	wantCode(t, b.Check(), pb.ErrorCode_ERROR_CODE_INSUFFICIENT_DISK_SPACE)
	_, err := s.Backup(context.Background(), BackupOptions{})
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_INSUFFICIENT_DISK_SPACE)
	b.End(err)
	if names := kept(t, s); len(names) != 0 {
		t.Fatalf("expected nothing to be left, found %v", names)
	}
}

// A follower that is behind waits until it has what was acknowledged before it was asked.
func TestFollowerBacksUpWhatWasAcknowledged(t *testing.T) {
	c := newCluster(t, 3)
	var held atomic.Pointer[string]
	goOn := make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	arrived := make(chan struct{}, 100)
	for id, n := range c.nodes {
		n.opts.Hooks.BeforePublish = func() {
			if h := held.Load(); h != nil && *h == id {
				arrived <- struct{}{}
				<-goOn
			}
		}
	}
	c.start(c.ids()...)
	c.writes(1, 10)
	c.converged()
	id := c.followers()[0]
	held.Store(&id)
	c.writes(11, 10) // by the other two
	position := c.leader().Status().LastPosition
	<-arrived
	n := c.nodes[id]
	if p := n.Status().LastPosition; p >= position {
		t.Fatalf("the follower is at %d already, the test needs it to be behind %d", p, position)
	}
	type result struct {
		b   *Backup
		err error
	}
	done := make(chan result, 1)
	go func() {
		b, err := n.Backup(within(t, 20*time.Second), BackupOptions{})
		done <- result{b, err}
	}()
	local := mustBackup(t, n.Shard, BackupOptions{Local: true})
	if local.Applied.Position >= position {
		t.Fatalf("expected a local backup to end before %d, found %d", position, local.Applied.Position)
	}
	select {
	case r := <-done:
		t.Fatalf("the backup did not wait: %+v, %v", r.b, r.err)
	case <-time.After(300 * time.Millisecond):
	}
	held.Store(nil)
	release()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.b.End(nil)
	if r.b.Applied.Position < position || !r.b.Confirmed {
		t.Fatalf("expected everything up to %d, found %+v", position, r.b)
	}
	if got, _ := opened(t, r.b); got != stateOf(t, c.leader().Shard) {
		t.Fatal("expected the leader's state, found another one")
	}
}

// A leader that was deposed answers only once it has what its successor acknowledged.
func TestDeposedLeaderDoesNotVouchForABackup(t *testing.T) {
	c := newCluster(t, 3)
	net := c.cuttable()
	for _, n := range c.nodes {
		n.opts.Hooks.BackupWait = 500 * time.Millisecond
	}
	c.start(c.ids()...)
	c.writes(1, 5)
	old := c.leader()
	id := old.opts.NodeID
	net.cut(id, true)
	// The others go on with a leader of their own.
	c.until("another leader", func() bool {
		for other, n := range c.nodes {
			if ready, _ := n.Leading(); ready && other != id {
				_, err := n.Append(within(t, time.Second), appendOf("a", "later", seqs(1), confirmRequest))
				return err == nil
			}
		}
		return false
	})
	b, err := old.Backup(within(t, 20*time.Second), BackupOptions{})
	if err == nil {
		t.Fatalf("expected the deposed leader to refuse, found %+v", b)
	}
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	net.cut(id, false)
	c.until("the deposed leader to follow", func() bool {
		b, err = old.Backup(within(t, 20*time.Second), BackupOptions{})
		return err == nil
	})
	defer b.End(nil)
	if got, _ := opened(t, b); !strings.Contains(got, "later") {
		t.Fatal("what the new leader acknowledged is not in the backup")
	}
}

func TestBackupWithoutAMajority(t *testing.T) {
	c := newCluster(t, 3)
	for _, n := range c.nodes {
		n.opts.Hooks.BackupWait = 500 * time.Millisecond
	}
	c.start(c.ids()...)
	c.writes(1, 5)
	c.converged()
	id := c.followers()[0]
	for _, other := range c.ids() {
		if other != id {
			c.kill(other)
		}
	}
	n := c.nodes[id]
	_, err := n.Backup(within(t, 20*time.Second), BackupOptions{})
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	if len(kept(t, n.Shard)) != 0 || n.Stats().Backups.Running != 0 || n.Stats().Backups.Failed != 1 {
		t.Fatalf("expected nothing to be left, found %v and %+v", kept(t, n.Shard), n.Stats().Backups)
	}
	b := mustBackup(t, n.Shard, BackupOptions{Local: true})
	if b.Confirmed || b.Applied.Position != 5 {
		t.Fatalf("expected what the node has, not confirmed, found %+v", b)
	}
}

// A leader that lost its majority, and does not know it yet, does not vouch for what it has:
// others may have acknowledged more.
func TestLeaderProvesThatItLeadsBeforeABackup(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	for _, n := range c.nodes {
		n.opts.Hooks.BackupWait, n.opts.HeartbeatTimeout = 300*time.Millisecond, 1500*time.Millisecond
	}
	c.start(c.ids()...)
	c.writes(1, 5)
	leader := c.leader()
	for id, n := range c.nodes {
		if n != leader {
			c.kill(id)
		}
	}
	_, err := leader.Backup(within(t, 20*time.Second), BackupOptions{})
	if ready, _ := leader.Leading(); !ready {
		t.Fatal("the leader has stepped down: the test came too late")
	}
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
}

func TestBackupOfNoMember(t *testing.T) {
	c := newCluster(t, 3)
	c.start("n1")
	for _, local := range []bool{false, true} {
		_, err := c.nodes["n1"].Backup(context.Background(), BackupOptions{Local: local})
		wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	}
}
