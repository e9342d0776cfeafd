package peer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	peerv1 "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

func raftID(s string) raft.ServerID { return raft.ServerID(s) }

func TestServerIDs(t *testing.T) {
	for id, want := range map[Identity]raft.ServerID{
		{NodeID: "n1", Generation: "0123abcd"}: "n1#0123abcd",
		{NodeID: "n1"}:                         "n1",
	} {
		if got := id.ServerID(); got != want || NodeID(got) != "n1" {
			t.Errorf("%+v is server %q of node %q, want %q of n1", id, got, NodeID(got), want)
		}
	}
}

func aHeader() header {
	sender := member("n1", "0123abcd")
	sender.RaftAddress, sender.ClientAddress = "10.0.0.1:7441", "10.0.0.1:7440"
	return header{kind: peerv1.Kind_KIND_RAFT, sender: sender, target: "n2#abcd0123"}
}

func TestHeaderArrivesAsItWasSent(t *testing.T) {
	var b bytes.Buffer
	if err := aHeader().write(&b); err != nil {
		t.Fatal(err)
	}
	b.WriteString("what follows")
	got, err := readHeader(&b)
	if err != nil || got != aHeader() {
		t.Errorf("%+v (%v)\nwant %+v", got, err, aHeader())
	}
	if b.String() != "what follows" {
		t.Errorf("left to read: %q, want what follows the header", b.String())
	}
}

func TestAnswerArrivesAsItWasSent(t *testing.T) {
	self := aHeader().sender
	for _, refused := range []*RefusedError{nil, refuse(peerv1.Refusal_REFUSAL_BUSY, "come back later")} {
		var b bytes.Buffer
		if err := answer(&b, self, refused); err != nil {
			t.Fatal(err)
		}
		got, err := readAnswer(&b)
		if got != self {
			t.Errorf("%+v, want %+v", got, self)
		}
		var r *RefusedError
		errors.As(err, &r)
		switch {
		case refused == nil && err != nil:
			t.Errorf("refused: %v", err)
		case refused != nil && (r == nil || *r != RefusedError{Reason: peerv1.Refusal_REFUSAL_BUSY, Remote: self, Text: "come back later"}):
			t.Errorf("%#v (%v), want it refused", r, err)
		}
	}
}

func TestLongRefusalIsCut(t *testing.T) {
	var b bytes.Buffer
	if err := answer(&b, Identity{}, refuse(peerv1.Refusal_REFUSAL_BUSY, "x%s", strings.Repeat("ä", 3000))); err != nil {
		t.Fatal(err)
	}
	_, err := readAnswer(&b)
	if want := "x" + strings.Repeat("ä", 511); err == nil || err.Error() != want || !utf8.ValidString(err.Error()) {
		t.Errorf("%q, want %q", err, want)
	}
}

func TestHeaderThatIsTooLongIsNotSent(t *testing.T) {
	h := aHeader()
	h.sender.ClientAddress = strings.Repeat("a", maxMessage)
	var b bytes.Buffer
	err := h.write(&b)
	if err == nil || !strings.Contains(err.Error(), "expected a handshake of at most 4096 bytes, found 4221: the addresses or the node id are too long") || b.Len() > 0 {
		t.Errorf("%v after %d bytes, want it refused", err, b.Len())
	}
}

func headerBytes(t testing.TB, m *peerv1.HandshakeHeader) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return frame(protocolVersion, b)
}

func TestWhatIsNoHeader(t *testing.T) {
	named := &peerv1.Identity{NodeId: "n1"}
	for name, c := range map[string]struct {
		in      []byte
		reason  peerv1.Refusal // UNSPECIFIED = not to be answered
		message string
	}{
		"nothing":             {nil, 0, "EOF"},
		"too short":           {[]byte("TDMK\x01"), 0, `not a node's handshake: expected "TDMK" and 4 bytes, found "TDMK\x01" and then the end`},
		"http":                {[]byte("GET / HTTP/1.1\r\n\r\n"), 0, `not a node's handshake: expected "TDMK", found "GET / HT"`},
		"a byte that is zero": {[]byte("TDMK\x01\x01\x00\x00"), 0, `not a node's handshake: expected "TDMK", found "TDMK\x01\x01\x00\x00"`},
		"too long":            {[]byte("TDMK\x01\x00\x10\x01"), 0, "not a node's handshake: expected a message of at most 4096 bytes, found one of 4097"},
		"too long by far":     {[]byte("TDMK\x01\x00\xff\xff"), 0, "not a node's handshake: expected a message of at most 4096 bytes, found one of 65535"},
		"cut":                 {[]byte("TDMK\x01\x00\x00\x05abcd"), 0, "not a node's handshake: expected a message of 5 bytes, found less (unexpected EOF)"},
		"another version": {frame(2, []byte("whatever")), peerv1.Refusal_REFUSAL_PROTOCOL_VERSION,
			"expected version 1 of the protocol between nodes, found 2: run versions of Tidemark that can work together on all nodes"},
		"no protobuf": {frame(1, []byte{0xff}), peerv1.Refusal_REFUSAL_MALFORMED, ""},
		"no kind": {headerBytes(t, &peerv1.HandshakeHeader{Sender: named}), peerv1.Refusal_REFUSAL_MALFORMED,
			"expected a connection for raft, for a snapshot or for peer calls, found kind 0"},
		"a kind of the future": {headerBytes(t, &peerv1.HandshakeHeader{Kind: 9, Sender: named}), peerv1.Refusal_REFUSAL_MALFORMED,
			"expected a connection for raft, for a snapshot or for peer calls, found kind 9"},
		"no sender": {headerBytes(t, &peerv1.HandshakeHeader{Kind: peerv1.Kind_KIND_PEER}), peerv1.Refusal_REFUSAL_MALFORMED,
			`expected the sender's node id in the header, found ""`},
		"a server id for a node id": {headerBytes(t, &peerv1.HandshakeHeader{Kind: peerv1.Kind_KIND_PEER, Sender: &peerv1.Identity{NodeId: "n1#1"}}), peerv1.Refusal_REFUSAL_MALFORMED,
			`expected the sender's node id in the header, found "n1#1"`},
	} {
		_, err := readHeader(bytes.NewReader(c.in))
		var refused *RefusedError
		if errors.As(err, &refused) != (c.reason != 0) || refused != nil && refused.Reason != c.reason {
			t.Errorf("%s: %v, want refusal %v", name, err, c.reason)
		}
		if err == nil || c.message != "" && err.Error() != c.message {
			t.Errorf("%s: %v\nwant %s", name, err, c.message)
		}
	}
}

func TestJudge(t *testing.T) {
	self := Identity{ClusterID: clusterA, Timeline: timelineA, NodeID: "n2", Generation: "22222222", RaftAddress: "b:1"}
	from := Identity{ClusterID: clusterA, Timeline: timelineA, NodeID: "n1", Generation: "11111111", RaftAddress: "a:1"}
	with := func(i Identity, change func(*Identity)) Identity { change(&i); return i }
	none := func(i *Identity) { i.ClusterID, i.Timeline = "", "" }
	other := func(i *Identity) { i.ClusterID, i.Timeline = clusterB, timelineB }
	restored := func(i *Identity) { i.Timeline = timelineB }
	const (
		raft, snapshot, calls = peerv1.Kind_KIND_RAFT, peerv1.Kind_KIND_SNAPSHOT, peerv1.Kind_KIND_PEER
		ok                    = peerv1.Refusal_REFUSAL_UNSPECIFIED
	)
	for name, c := range map[string]struct {
		self, from Identity
		target     string
		forRaft    peerv1.Refusal
		forCalls   peerv1.Refusal
		text       string // a part of it
	}{
		"members":                  {self, from, "n2#22222222", ok, ok, ""},
		"no target":                {self, from, "", peerv1.Refusal_REFUSAL_MALFORMED, ok, "expected the id of the server that is meant, found none"},
		"another node":             {self, from, "n3#22222222", peerv1.Refusal_REFUSAL_OTHER_TARGET, peerv1.Refusal_REFUSAL_OTHER_TARGET, "expected server n3#22222222 at b:1, found n2#22222222: the address is another node's: correct it"},
		"another generation":       {self, from, "n2#33333333", peerv1.Refusal_REFUSAL_OTHER_TARGET, peerv1.Refusal_REFUSAL_OTHER_TARGET, "found n2#22222222: it was wiped since"},
		"no generation":            {self, from, "n2", peerv1.Refusal_REFUSAL_OTHER_TARGET, peerv1.Refusal_REFUSAL_OTHER_TARGET, "expected server n2 at b:1, found n2#22222222: it was wiped since"},
		"another cluster":          {self, with(from, other), "n2#22222222", peerv1.Refusal_REFUSAL_OTHER_CLUSTER, peerv1.Refusal_REFUSAL_OTHER_CLUSTER, "these nodes belong to different clusters"},
		"another timeline":         {self, with(from, restored), "n2#22222222", peerv1.Refusal_REFUSAL_OTHER_TIMELINE, peerv1.Refusal_REFUSAL_OTHER_TIMELINE, "expected timeline " + timelineA + ", that of node n2 at b:1, found " + timelineB + ", that of node n1 at a:1: one of them was restored from a backup"},
		"from a node without":      {self, with(from, none), "n2#22222222", peerv1.Refusal_REFUSAL_OTHER_CLUSTER, ok, "expected a node of a cluster, found node n1 at a:1, which belongs to none"},
		"to a node without":        {with(self, none), from, "n2#22222222", peerv1.Refusal_REFUSAL_RAFT_NOT_READY, ok, "node n2 at b:1 belongs to no cluster yet"},
		"to what it was":           {with(self, none), from, "n2#33333333", peerv1.Refusal_REFUSAL_OTHER_TARGET, peerv1.Refusal_REFUSAL_OTHER_TARGET, "it was wiped since"},
		"both without":             {with(self, none), with(from, none), "n2#22222222", peerv1.Refusal_REFUSAL_OTHER_CLUSTER, ok, "it must join one before it runs raft"},
		"another cluster's target": {self, with(from, other), "n3#33333333", peerv1.Refusal_REFUSAL_OTHER_CLUSTER, peerv1.Refusal_REFUSAL_OTHER_CLUSTER, "these nodes belong to different clusters"},
	} {
		for kind, want := range map[peerv1.Kind]peerv1.Refusal{raft: c.forRaft, snapshot: c.forRaft, calls: c.forCalls} {
			got := judge(c.self, header{kind: kind, sender: c.from, target: raftID(c.target)})
			if (got == nil) != (want == ok) || got != nil && (got.Reason != want || !strings.Contains(got.Text, c.text)) {
				t.Errorf("%s, %v: %+v\nwant %v with %q", name, kind, got, want, c.text)
			}
		}
	}
}

func TestUnknownProtocolVersionIsRefusedInWords(t *testing.T) {
	noLeaks(t)
	const text = "expected version 1 of the protocol between nodes, found 7: run versions of Tidemark that can work together on all nodes"
	b := newNode(t, member("n2", "2"))
	c := raw(t, b)
	if _, err := c.Write(frame(7, []byte("of the future"))); err != nil {
		t.Fatal(err)
	}
	remote, err := readAnswer(c)
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Reason != peerv1.Refusal_REFUSAL_PROTOCOL_VERSION || refused.Text != text || remote != b.identity() {
		t.Errorf("%+v: %v, want %s", remote, err, text)
	}
	if lines := b.logged("a connection of another node was refused"); len(lines) != 1 || lines[0].ContextMap()["reason"] != text {
		t.Errorf("logged %v, want the text of the refusal", lines)
	}
}

// TestAnswersThatAreNone connects to what is no node, or none of ours.
func TestAnswersThatAreNone(t *testing.T) {
	noLeaks(t)
	self := &peerv1.Identity{NodeId: "n2", ClusterId: clusterA, Timeline: timelineA, RaftAddress: "b:1"}
	reply := func(version byte, m *peerv1.HandshakeAnswer) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return frame(version, b)
	}
	for name, c := range map[string]struct {
		answer []byte
		want   string
	}{
		"closed":       {nil, "expected an answer to the handshake, found the connection closed (EOF): it is not a node, or it is stopping"},
		"http":         {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), `not a node's handshake: expected "TDMK", found "HTTP/1.1": the address must be one for nodes (--raft-advertise), not one for clients`},
		"no protobuf":  {frame(1, []byte{0xff}), "not a node's handshake: "},
		"the future's": {reply(3, &peerv1.HandshakeAnswer{Identity: self}), "expected version 1 of the protocol between nodes, found 3: run versions"},
		"the future's refusal": {reply(3, &peerv1.HandshakeAnswer{Refusal: peerv1.Refusal_REFUSAL_PROTOCOL_VERSION, Text: "we speak 3 here", Identity: self}),
			"we speak 3 here"},
		"another server's": {reply(1, &peerv1.HandshakeAnswer{Identity: self}), "expected server n2#2 at b:1, found n2: it was wiped since"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _, _ = readFrame(conn)
			_, _ = conn.Write(c.answer)
			_ = conn.Close()
		}()
		a := newNode(t, member("n1", "1"))
		_, err = a.connect(peerv1.Kind_KIND_RAFT, &node{addr: l.Addr().String()}, "n2#2")
		if want := fmt.Sprintf("connect to %s: %s", l.Addr(), c.want); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", name, err, want)
		}
		_ = l.Close()
		<-served
	}
}

func TestStrangersAreShownTheDoor(t *testing.T) {
	noLeaks(t)
	const logged = "a connection did not begin as one of a node does: this port is for the other nodes, clients have another one"
	for name, words := range map[string]string{
		"garbage":              "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09",
		"http":                 "GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n",
		"grpc":                 "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"tls":                  "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"a header far too big": "TDMK\x01\x00\xff\xff" + strings.Repeat("x", 0xffff),
		"a header cut short":   "TDMK\x01\x00\x00\x10abc",
		"nothing":              "",
	} {
		b := newNodeThatWaits(t, waits{handshake: 50 * time.Millisecond}, member("n2", "2"))
		for range 2 {
			c := raw(t, b)
			_, _ = io.WriteString(c, words) // fails if it is closed in the middle
			if err := isClosed(c); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if lines := b.logged(logged); len(lines) != 1 {
			t.Errorf("%s: %d lines, want one: %v", name, len(lines), b.logs.All())
		}
		b.close()
	}
	b := newNode(t, member("n2", "2"))
	_ = raw(t, b).Close()
	eventually(t, "the end of a look at the port", func() (string, bool) {
		lines := b.logs.FilterMessage(logged).All()
		return fmt.Sprint(lines), len(lines) == 1 && lines[0].Level == zap.DebugLevel
	})
}

func TestSilentConnectionsDoNotKeepNodesOut(t *testing.T) {
	noLeaks(t)
	a, b := newNode(t, member("n1", "1")), newNodeThatWaits(t, waits{handshake: 200 * time.Millisecond}, member("n2", "2"))
	for range maxHandshaking + 10 {
		raw(t, b)
	}
	eventually(t, "as many handshakes as there may be", func() (string, bool) {
		s := b.Stats()
		if s.Handshaking > s.MaxHandshaking {
			t.Errorf("%d handshakes at once, want at most %d", s.Handshaking, s.MaxHandshaking)
		}
		return fmt.Sprint(s.Handshaking), s.Handshaking == s.MaxHandshaking
	})
	if _, err := a.connect(peerv1.Kind_KIND_PEER, b, ""); err != nil {
		t.Error(err)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	noLeaks(t)
	a, b := newNode(t, member("n1", "1")), newNode(t, member("n2", "2"))
	b.transport(time.Second)
	for kind, most := range map[peerv1.Kind]int{peerv1.Kind_KIND_PEER: maxPeerConns, peerv1.Kind_KIND_RAFT: maxRaftConns} {
		var last *conn
		for i := range most {
			c, err := a.connect(kind, b, "n2#2")
			if err != nil {
				t.Fatalf("%v %d: %v", kind, i, err)
			}
			last = c
		}
		_, err := a.connect(kind, b, "n2#2")
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Reason != peerv1.Refusal_REFUSAL_BUSY {
			t.Errorf("%v: %v, want it refused: there are %d", kind, err, most)
		}
		_ = last.Close()
		eventually(t, "room for another one", func() (string, bool) {
			_, err := a.connect(kind, b, "n2#2")
			return fmt.Sprint(err), err == nil
		})
	}
}

func TestComplaintsAreRare(t *testing.T) {
	var c complaints
	now := time.Unix(1000, 0)
	k := complaint{"n1", "cluster"}
	for i, want := range []struct {
		after  time.Duration
		unsaid int
		ok     bool
	}{{0, 0, true}, {time.Second, 0, false}, {time.Second, 0, false}, {complaintEvery - 2*time.Second, 2, true}, {time.Second, 0, false}, {complaintEvery, 1, true}} {
		now = now.Add(want.after)
		if unsaid, ok := c.due(k, now); unsaid != want.unsaid || ok != want.ok {
			t.Errorf("%d: %v after %d that were not logged, want %v after %d", i, ok, unsaid, want.ok, want.unsaid)
		}
	}
	for i := range 2 * maxComplaints {
		_, ok := c.due(complaint{fmt.Sprint(i), "x"}, now)
		if want := i < maxComplaints-1; ok != want {
			t.Errorf("%d: logged %v, want %v: more than %d are not remembered", i, ok, want, maxComplaints)
		}
	}
	if _, ok := c.due(complaint{"later", "x"}, now.Add(complaintEvery)); !ok || len(c.last) != 1 {
		t.Errorf("logged %v with %d remembered, want the old ones forgotten", ok, len(c.last))
	}
}

func FuzzReadHeader(f *testing.F) {
	var b bytes.Buffer
	if err := aHeader().write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(headerBytes(f, &peerv1.HandshakeHeader{Kind: peerv1.Kind_KIND_PEER, Sender: &peerv1.Identity{NodeId: "n1"}}))
	f.Add([]byte("TDMK\x01\x00\xff\xff"))
	f.Add(frame(9, []byte("future")))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		h, err := readHeader(r)
		if took := len(in) - r.Len(); took > frameBytes+maxMessage {
			t.Errorf("read %d bytes, want %d at most", took, frameBytes+maxMessage)
		}
		if err == nil {
			var again bytes.Buffer
			if err := h.write(&again); err == nil { // which leaves out what it does not know
				if got, err := readHeader(&again); err != nil || got != h {
					t.Errorf("%+v became %+v (%v)", h, got, err)
				}
			}
			if refused := judge(member("n2", "2"), h); refused != nil && refused.Text == "" {
				t.Errorf("%+v is refused without a word", h)
			}
		}
		_, _ = readAnswer(bytes.NewReader(in))
	})
}
