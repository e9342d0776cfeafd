package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	peerv1 "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

const (
	magic           = "TDMK"
	protocolVersion = 1
	frameBytes      = 8       // magic, version, zero, length
	maxMessage      = 4 << 10 // bytes of a header or an answer, without the frame
	maxText         = 1 << 10 // bytes of a refusal's text

	// handshakeTimeout is how long a connection may take for its handshake, from the
	// moment it is there.
	handshakeTimeout = 3 * time.Second
)

// RefusedError is returned when the node that was dialed does not take the connection, or
// is not the one that was meant.
type RefusedError struct {
	Reason peerv1.Refusal
	Remote Identity // of the node that was dialed, as far as it told
	Text   string
}

func (e *RefusedError) Error() string { return e.Text }

// errNotOurs is returned for bytes that are no frame of ours.
var errNotOurs = errors.New("not a node's handshake")

// header is what a connection begins with.
type header struct {
	kind   peerv1.Kind
	sender Identity
	target raft.ServerID // "" = whoever is there
}

// writeFrame sends a message with its frame in one write.
func writeFrame(w io.Writer, m proto.Message) error {
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, frameBytes, 256), m)
	if err != nil {
		return err
	}
	n := len(b) - frameBytes
	if n > maxMessage {
		return fmt.Errorf("expected a handshake of at most %d bytes, found %d: the addresses or the node id are too long", maxMessage, n)
	}
	copy(b, magic)
	b[4] = protocolVersion
	binary.BigEndian.PutUint16(b[6:], uint16(n))
	_, err = w.Write(b)
	return err
}

// readFrame reads a frame and what is in it, and not a byte more. The version is the
// sender's; what a frame of another version holds is for the caller to judge.
func readFrame(r io.Reader) (version byte, message []byte, err error) {
	var f [frameBytes]byte
	if n, err := io.ReadFull(r, f[:]); err != nil {
		if n > 0 && errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, nil, fmt.Errorf("%w: expected %q and %d bytes, found %q and then the end", errNotOurs, magic, frameBytes-len(magic), f[:n])
		}
		return 0, nil, err
	}
	if string(f[:4]) != magic || f[5] != 0 {
		return 0, nil, fmt.Errorf("%w: expected %q, found %q", errNotOurs, magic, f[:])
	}
	n := int(binary.BigEndian.Uint16(f[6:]))
	if n > maxMessage {
		return 0, nil, fmt.Errorf("%w: expected a message of at most %d bytes, found one of %d", errNotOurs, maxMessage, n)
	}
	message = make([]byte, n)
	if _, err := io.ReadFull(r, message); err != nil {
		return 0, nil, fmt.Errorf("%w: expected a message of %d bytes, found less (%w)", errNotOurs, n, err)
	}
	return f[4], message, nil
}

// readHeader reads the beginning of a connection. A *RefusedError is to be answered; after
// any other error the connection is to be closed without a word, since what is there does
// not speak our language.
func readHeader(r io.Reader) (header, error) {
	version, message, err := readFrame(r)
	if err != nil {
		return header{}, err
	}
	if version != protocolVersion {
		return header{}, refuse(peerv1.Refusal_REFUSAL_PROTOCOL_VERSION,
			"expected version %d of the protocol between nodes, found %d: run versions of Tidemark that can work together on all nodes", protocolVersion, version)
	}
	var m peerv1.HandshakeHeader
	if err := proto.Unmarshal(message, &m); err != nil {
		return header{}, refuse(peerv1.Refusal_REFUSAL_MALFORMED, "expected a header, found %d bytes that are none (%v)", len(message), err)
	}
	h := header{kind: m.GetKind(), sender: identityOf(m.GetSender()), target: raft.ServerID(m.GetTarget())}
	switch h.kind {
	case peerv1.Kind_KIND_RAFT, peerv1.Kind_KIND_SNAPSHOT, peerv1.Kind_KIND_PEER:
	default:
		return h, refuse(peerv1.Refusal_REFUSAL_MALFORMED, "expected a connection for raft, for a snapshot or for peer calls, found kind %d", h.kind)
	}
	if h.sender.NodeID == "" || strings.Contains(h.sender.NodeID, "#") {
		return h, refuse(peerv1.Refusal_REFUSAL_MALFORMED, "expected the sender's node id in the header, found %q", h.sender.NodeID)
	}
	return h, nil
}

func (h header) write(w io.Writer) error {
	return writeFrame(w, &peerv1.HandshakeHeader{Kind: h.kind, Sender: h.sender.proto(), Target: string(h.target)})
}

// answer sends what became of a connection: refused == nil means that it is open.
func answer(w io.Writer, self Identity, refused *RefusedError) error {
	m := &peerv1.HandshakeAnswer{Identity: self.proto()}
	if refused != nil {
		m.Refusal, m.Text = refused.Reason, refused.Text
		if len(m.Text) > maxText {
			m.Text = m.Text[:maxText]
			for !utf8.ValidString(m.Text) {
				m.Text = m.Text[:len(m.Text)-1]
			}
		}
	}
	return writeFrame(w, m)
}

// readAnswer reads the answer to a header. A refusal is returned as a *RefusedError.
func readAnswer(r io.Reader) (Identity, error) {
	version, message, err := readFrame(r)
	switch {
	case errors.Is(err, errNotOurs):
		return Identity{}, fmt.Errorf("%w: the address must be one for nodes (--raft-advertise), not one for clients", err)
	case errors.Is(err, io.EOF):
		return Identity{}, fmt.Errorf("expected an answer to the handshake, found the connection closed (%w): it is not a node, or it is stopping", err)
	case err != nil:
		return Identity{}, err
	}
	var m peerv1.HandshakeAnswer
	if err := proto.Unmarshal(message, &m); err != nil {
		return Identity{}, fmt.Errorf("%w: %w", errNotOurs, err)
	}
	remote := identityOf(m.GetIdentity())
	if m.GetRefusal() != peerv1.Refusal_REFUSAL_UNSPECIFIED {
		return remote, &RefusedError{Reason: m.GetRefusal(), Remote: remote, Text: m.GetText()}
	}
	if version != protocolVersion {
		return remote, &RefusedError{Reason: peerv1.Refusal_REFUSAL_PROTOCOL_VERSION, Remote: remote,
			Text: fmt.Sprintf("expected version %d of the protocol between nodes, found %d: run versions of Tidemark that can work together on all nodes", protocolVersion, version)}
	}
	return remote, nil
}

func refuse(reason peerv1.Refusal, format string, args ...any) *RefusedError {
	return &RefusedError{Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// judge says whether self may take a connection that begins with h; nil = yes. Both ends
// ask it: the node that dialed with what the other one answered.
func judge(self Identity, h header) *RefusedError {
	forRaft := h.kind != peerv1.Kind_KIND_PEER
	from := h.sender
	switch {
	case from.ClusterID != "" && self.ClusterID != "" && from.ClusterID != self.ClusterID:
		return refuse(peerv1.Refusal_REFUSAL_OTHER_CLUSTER,
			"expected cluster %s, that of node %s at %s, found %s, that of node %s at %s: these nodes belong to different clusters; correct the addresses, or, if one's data is not needed, start that node with an empty directory",
			self.ClusterID, self.NodeID, self.RaftAddress, from.ClusterID, from.NodeID, from.RaftAddress)
	case from.Timeline != "" && self.Timeline != "" && from.Timeline != self.Timeline:
		return refuse(peerv1.Refusal_REFUSAL_OTHER_TIMELINE,
			"expected timeline %s, that of node %s at %s, found %s, that of node %s at %s: one of them was restored from a backup or recovered and the other was not; start the one that is out of date with an empty directory",
			self.Timeline, self.NodeID, self.RaftAddress, from.Timeline, from.NodeID, from.RaftAddress)
	case h.target != "" && h.target != self.ServerID():
		what := "the address is another node's: correct it"
		if NodeID(h.target) == self.NodeID {
			what = "it was wiped since and is not the server it was: it must join the cluster again"
		}
		return refuse(peerv1.Refusal_REFUSAL_OTHER_TARGET, "expected server %s at %s, found %s: %s", h.target, self.RaftAddress, self.ServerID(), what)
	case forRaft && h.target == "":
		return refuse(peerv1.Refusal_REFUSAL_MALFORMED, "expected the id of the server that is meant, found none")
	case forRaft && (from.ClusterID == "" || from.Timeline == ""):
		return refuse(peerv1.Refusal_REFUSAL_OTHER_CLUSTER, "expected a node of a cluster, found node %s at %s, which belongs to none: it must join one before it runs raft", from.NodeID, from.RaftAddress)
	case forRaft && (self.ClusterID == "" || self.Timeline == ""):
		return refuse(peerv1.Refusal_REFUSAL_RAFT_NOT_READY, "node %s at %s belongs to no cluster yet: it takes raft's calls once it does", self.NodeID, self.RaftAddress)
	}
	return nil
}

// greet is the handshake of the node that dials. It returns who answered.
func greet(c net.Conn, h header, deadline time.Time) (Identity, error) {
	if err := c.SetDeadline(deadline); err != nil {
		return Identity{}, err
	}
	if err := h.write(c); err != nil {
		return Identity{}, err
	}
	remote, err := readAnswer(c)
	if err != nil {
		return remote, err
	}
	if refused := judge(remote, h); refused != nil {
		refused.Remote = remote
		return remote, refused
	}
	return remote, c.SetDeadline(time.Time{})
}
