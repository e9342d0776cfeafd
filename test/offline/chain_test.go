package offline

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/inspect"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/server"
	"github.com/tidemark-db/tidemark/wal/record"
)

// damaged is the history of a stopped node, open for changes that no node makes, in blocks whose
// checksums are right.
type damaged struct {
	t  *testing.T
	db *pebble.DB
}

var chained = record.MakeKey("acme", "audit", "x")

func batchKey(k record.Key, version uint64) string {
	key := binary.BigEndian.AppendUint32([]byte("b/"+string(k)), 1)
	return string(binary.BigEndian.AppendUint64(key, version))
}

// quiet is Pebble's logger of a test.
type quiet struct{ t *testing.T }

func (quiet) Infof(string, ...any)                {}
func (l quiet) Errorf(format string, args ...any) { l.t.Errorf(format, args...) }
func (l quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func openDamaged(t *testing.T, dir string) *damaged {
	t.Helper()
	c := *pebble.DefaultComparer
	c.Name = "tidemark.history.1"
	// As wal/history/DESIGN.md has it: three strings, behind w/ four, and p/ alone.
	c.Split = func(key []byte) int {
		strs := 3
		switch {
		case bytes.HasPrefix(key, []byte("p/")):
			return 2
		case bytes.HasPrefix(key, []byte("w/")):
			strs = 4
		case !bytes.HasPrefix(key, []byte("b/")) && !bytes.HasPrefix(key, []byte("h/")):
			return len(key)
		}
		at := 2
		for range strs {
			i := bytes.IndexByte(key[at:], 0)
			if i < 0 {
				return len(key)
			}
			at += i + 1
		}
		return at
	}
	c.ComparePointSuffixes, c.CompareRangeSuffixes = bytes.Compare, bytes.Compare
	db, err := pebble.Open(dir, &pebble.Options{
		Comparer: &c, FormatMajorVersion: pebble.FormatValueSeparation, DisableWAL: true, DisableAutomaticCompactions: true, Logger: quiet{t},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &damaged{t, db}
}

func (d *damaged) get(key string) []byte {
	d.t.Helper()
	v, closer, err := d.db.Get([]byte(key))
	if err != nil {
		d.t.Fatalf("%q: %v", key, err)
	}
	v = bytes.Clone(v)
	if err := closer.Close(); err != nil {
		d.t.Fatal(err)
	}
	return v
}

func (d *damaged) set(key string, value []byte) {
	d.t.Helper()
	if err := d.db.Set([]byte(key), value, pebble.NoSync); err != nil {
		d.t.Fatal(err)
	}
}

func (d *damaged) remove(key string) {
	d.t.Helper()
	d.get(key)
	if err := d.db.Delete([]byte(key), pebble.NoSync); err != nil {
		d.t.Fatal(err)
	}
}

// rewritten stores a version as an attacker would who knows the format: with another payload,
// and the hash that it then has.
func (d *damaged) rewritten(version uint64) {
	d.t.Helper()
	key := batchKey(chained, version)
	h, prev, _, events, err := record.ParseBatch(d.get(key))
	if err != nil {
		d.t.Fatal(err)
	}
	other := bytes.Replace(events, []byte("payload"), []byte("PAYLOAD"), 1)
	if bytes.Equal(other, events) {
		d.t.Fatal("expected a payload to change")
	}
	value, _ := record.AppendBatch(nil, &h, prev, other)
	d.set(key, value)
}

func (d *damaged) rowKey(client string, seq uint64) string {
	d.t.Helper()
	prefix := binary.BigEndian.AppendUint64([]byte("w/"+string(chained)+client+"\x00"), ^seq)
	it, err := d.db.NewIter(&pebble.IterOptions{LowerBound: prefix})
	if err != nil {
		d.t.Fatal(err)
	}
	if !it.First() || !bytes.HasPrefix(it.Key(), prefix) {
		d.t.Fatalf("expected a row of %s %d", client, seq)
	}
	key := string(it.Key())
	if err := it.Close(); err != nil {
		d.t.Fatal(err)
	}
	return key
}

// chainOf writes five batches of one aggregate and two of another, which is trimmed.
func chainOf(t *testing.T, dir string) {
	t.Helper()
	s := open(t, small(dir))
	for version := uint64(1); version <= 5; version++ {
		appendOne(t, s, chained, fmt.Sprint("w", version%2), version)
	}
	for version := uint64(1); version <= 2; version++ {
		appendOne(t, s, record.MakeKey("acme", "audit", "y"), "w", version)
	}
	if _, err := s.Trim(t.Context(), &pb.TrimRequest{Aggregate: &pb.AggregateKey{Org: "acme", Type: "audit", Id: "y"}, KeepFromVersion: 2}); err != nil {
		t.Fatal(err)
	}
	end(t, s, true)
}

func appendOne(t *testing.T, s *replication.Shard, k record.Key, client string, seq uint64) {
	t.Helper()
	org, typ, id, _ := k.Parts()
	_, err := s.Append(t.Context(), &pb.AppendRequest{ClientId: client, Writes: []*pb.Write{{
		Aggregate: &pb.AggregateKey{Org: org, Type: typ, Id: id}, AllowCreate: true,
		Events: []*pb.NewEvent{{ClientSeq: seq, EventId: fmt.Sprint("e", seq), Type: "T", Payload: []byte(fmt.Sprint("payload ", seq))}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
}

// online serves a directory and asks its node to verify what req names; it returns each finding
// as "KIND aggregate version", and the last progress.
func online(t *testing.T, dir string, req *pb.VerifyRequest) (found []string, last *pb.VerifyProgress) {
	t.Helper()
	shard := open(t, small(dir))
	defer end(t, shard, false)
	s, err := server.New(server.Options{Shard: shard})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // ends with Stop below
	defer func() {
		s.Stop(t.Context())
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := pb.NewClusterServiceClient(conn).Verify(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found, last
		}
		if err != nil {
			t.Fatal(err)
		}
		last = m.GetProgress()
		for _, f := range m.GetFindings() {
			kind := strings.TrimPrefix(f.GetKind().String(), "FINDING_KIND_")
			found = append(found, fmt.Sprintf("%s %s %d", kind, f.GetAggregate().GetId(), f.GetVersion()))
			t.Log(f)
		}
	}
}

// TestChainIsVerified changes what a stopped node has, in every way that the chain is there to
// show, and expects both ways to verify to name it: offline by the key, online by the version.
func TestChainIsVerified(t *testing.T) {
	other := record.MakeKey("acme", "audit", "y")
	sound := t.TempDir()
	chainOf(t, sound)
	for name, c := range map[string]struct {
		damage  func(d *damaged)
		online  []string
		offline []string // keys
	}{
		"nothing": {damage: func(*damaged) {}},
		"a changed batch": {
			func(d *damaged) {
				key := batchKey(chained, 3)
				d.set(key, bytes.Replace(d.get(key), []byte("payload"), []byte("Payload"), 1))
			},
			[]string{"CHANGED x 3"}, []string{batchKey(chained, 3)},
		},
		"a changed batch with its own hash": {
			func(d *damaged) { d.rewritten(3) }, []string{"ROW x 3", "UNLINKED x 4"}, []string{batchKey(chained, 4)},
		},
		"the newest batch, changed, with its own hash": {
			func(d *damaged) { d.rewritten(5) }, []string{"HEAD x 5", "ROW x 5"}, []string{"h/" + string(chained)},
		},
		"a missing batch":     {func(d *damaged) { d.remove(batchKey(chained, 3)) }, []string{"MISSING x 3"}, []string{batchKey(chained, 4)}},
		"the first batch":     {func(d *damaged) { d.remove(batchKey(chained, 1)) }, []string{"MISSING x 1"}, []string{batchKey(chained, 2)}},
		"the newest batch":    {func(d *damaged) { d.remove(batchKey(chained, 5)) }, []string{"MISSING x 5"}, []string{"h/" + string(chained)}},
		"several in a row":    {func(d *damaged) { d.remove(batchKey(chained, 2)); d.remove(batchKey(chained, 3)) }, []string{"MISSING x 2"}, []string{batchKey(chained, 4)}},
		"the head":            {func(d *damaged) { d.remove("h/" + string(chained)) }, []string{"HEAD x 0"}, []string{"h/" + string(chained)}},
		"a writer row":        {func(d *damaged) { d.remove(d.rowKey("w0", 2)) }, []string{"ROW x 2"}, nil},
		"what a trim took":    {func(d *damaged) { d.set(batchKey(other, 1), d.get(batchKey(other, 2))) }, []string{"LEFTOVER y 1"}, []string{batchKey(other, 1)}},
		"no batch at all":     {func(d *damaged) { d.set(batchKey(chained, 2), []byte{9}) }, []string{"CHANGED x 2"}, []string{batchKey(chained, 2)}},
		"another aggregate's": {func(d *damaged) { d.set(batchKey(chained, 2), d.get(batchKey(other, 2))) }, []string{"MISPLACED x 2"}, []string{batchKey(chained, 2)}},
		"two swapped batches": {
			func(d *damaged) {
				a, b := d.get(batchKey(chained, 2)), d.get(batchKey(chained, 3))
				d.set(batchKey(chained, 2), b)
				d.set(batchKey(chained, 3), a)
			},
			[]string{"MISPLACED x 2", "MISPLACED x 3"}, []string{batchKey(chained, 2), batchKey(chained, 3)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(sound)); err != nil {
				t.Fatal(err)
			}
			at, err := inspect.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			history := at.History
			if err := at.Close(); err != nil {
				t.Fatal(err)
			}
			d := openDamaged(t, history)
			c.damage(d)
			if err := errors.Join(d.db.Flush(), d.db.Close()); err != nil {
				t.Fatal(err)
			}
			findings, _ := verify(t, dir)
			if len(c.online) == 0 && len(findings) > 0 || len(c.online) > 0 && len(findings) == 0 {
				t.Errorf("offline: found %v", findings)
			}
			for _, key := range c.offline {
				if !slices.ContainsFunc(findings, func(f inspect.Finding) bool {
					return f.Damage && f.File == history && f.Key == fmt.Sprintf("%q", key)
				}) {
					t.Errorf("offline: expected damage at key %q, found %v", key, findings)
				}
			}
			found, last := online(t, dir, &pb.VerifyRequest{})
			if !slices.Equal(found, c.online) {
				t.Errorf("online: expected %q, found %q", c.online, found)
			}
			if !last.GetDone() || last.GetFindings() != uint64(len(found)) || last.GetAggregates() != 2 {
				t.Errorf("online: expected two aggregates to be finished, found %v", last)
			}
		})
	}
}
