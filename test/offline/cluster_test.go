package offline

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/internal/inspect"
	"github.com/tidemark-db/tidemark/replication"
)

// member is a node of a cluster in this process.
type member struct {
	o       replication.Options
	address string
	s       *replication.Shard
}

// open starts the node, on the address that it had before.
func (m *member) open(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", m.address)
	if err != nil {
		t.Fatal(err)
	}
	m.o.Listener, m.address = l, l.Addr().String()
	m.o.RaftAddress = m.address
	if m.s, err = replication.Open(m.o); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(30 * time.Second); !ok(); <-ticker.C {
		if time.Now().After(deadline) {
			t.Fatalf("expected %s within 30 s", what)
		}
	}
}

func leader(t *testing.T, members []*member) (out *member) {
	t.Helper()
	eventually(t, "a leader that takes writes", func() bool {
		for _, m := range members {
			if ready, _ := m.s.Leading(); ready {
				out = m
			}
		}
		return out != nil
	})
	return out
}

// TestDirectoriesOfThreeNodes: a leader's, a follower's, and that of a node which lost its own
// and was sent another's snapshot; one of them stopped, the others without a word.
func TestDirectoriesOfThreeNodes(t *testing.T) {
	root := t.TempDir()
	var members []*member
	var peers []replication.Peer
	for i := range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprint("n", i+1)
		o := small(filepath.Join(root, id))
		o.NodeID, o.Listener, o.RaftAddress, o.AdvertiseAddress = id, l, l.Addr().String(), "127.0.0.1:"+id
		// The same node leads all along, also on a busy machine.
		o.HeartbeatTimeout, o.ElectionTimeout = 1500*time.Millisecond, 1500*time.Millisecond
		members = append(members, &member{o: o, address: o.RaftAddress})
		peers = append(peers, replication.Peer{ID: id, Address: o.RaftAddress})
	}
	for _, m := range members {
		m.o.Peers = peers
		var err error
		if m.s, err = replication.Open(m.o); err != nil {
			t.Fatal(err)
		}
	}
	lead := leader(t, members)
	w := newWriter()
	w.untilSnapshot(t, lead.s, lead.o.Dir)

	var lost *member
	for _, m := range members {
		if m != lead {
			lost = m
		}
	}
	end(t, lost.s, false)
	if err := os.RemoveAll(lost.o.Dir); err != nil {
		t.Fatal(err)
	}
	w.writes(t, lead.s, 30)
	lost.open(t)
	eventually(t, "the node that lost its directory to have caught up", func() bool {
		return lost.s.Status().LastPosition == lead.s.Status().LastPosition
	})
	w.writes(t, lead.s, 30)
	eventually(t, "the node that lost its directory to follow", func() bool {
		return lost.s.Status().LastPosition == lead.s.Status().LastPosition
	})
	for _, m := range members {
		if m == lead {
			if err := m.s.Stop(context.Background()); err != nil {
				t.Error(err)
			}
			continue
		}
		end(t, m.s, false)
	}
	for _, m := range members {
		if r := sound(t, m.o.Dir); r.Entries == 0 || r.Batches == 0 && m == lead {
			t.Errorf("%s: checked %+v", m.o.NodeID, r)
		}
	}
	d, err := inspect.Open(lost.o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Raft()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	self := d.Identity.NodeID + "#" + d.Identity.Generation
	if !slices.ContainsFunc(r.Members, func(m inspect.Member) bool { return m.ID == self && m.NodeID() == lost.o.NodeID }) {
		t.Errorf("found members %+v, expected %s among them", r.Members, self)
	}
	received := false
	for _, s := range r.Snapshots {
		received = received || s.Meta.Received
	}
	if !received && r.FirstIndex == 1 {
		t.Errorf("found a log from entry 1 on and snapshots %+v, expected one that another node sent", r.Snapshots)
	}
}
