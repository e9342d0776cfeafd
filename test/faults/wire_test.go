package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/process"
)

// memoryBound is what a node may have resident whatever it is sent: its memory limit, which
// these tests set, and what Go needs beside its heap.
const (
	memoryLimit = 256 << 20
	memoryBound = memoryLimit + 128<<20
)

func newWireFixture(t *testing.T) (*fixture, *process.Node) {
	t.Helper()
	f := newFixture(t, "--memory-limit", "256MiB")
	n := process.Start(t, f.options)
	f.load(t, n, 100)
	return f, n
}

// alive checks that the node serves, has not grown, and still has everything.
func (f *fixture) alive(t *testing.T, n *process.Node) {
	t.Helper()
	checkMemory(t, n)
	f.load(t, n, 100)
	if err := f.set.Check(t.Context(), clients(t, n)[0]); err != nil {
		t.Error(err)
	}
	n.Kill(t)
}

func checkMemory(t *testing.T, n *process.Node) {
	t.Helper()
	peak := n.PeakRSS(t)
	t.Logf("at most %d MiB were resident", peak>>20)
	if peak > memoryBound {
		t.Errorf("%d MiB were resident, expected at most %d", peak>>20, memoryBound>>20)
	}
}

// rawCodec sends the bytes that it is given and drops what comes back.
type rawCodec struct{ encoding.CodecV2 }

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

// send sends bytes as the message of a call.
func send(ctx context.Context, conn *grpc.ClientConn, method string, b []byte) error {
	var answer []byte
	return conn.Invoke(ctx, method, b, &answer, grpc.ForceCodecV2(rawCodec{}))
}

// field is one length-delimited field.
func field(num protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), content)
}

func TestMessagesThatAreNone(t *testing.T) {
	f, n := newWireFixture(t)
	conn := n.Dial(t)
	valid, err := proto.Marshal(&pb.AppendRequest{ClientId: "a", Writes: []*pb.Write{{
		Aggregate: &pb.AggregateKey{Org: "acme", Type: "orders", Id: "wire"}, AllowCreate: true,
		Events: []*pb.NewEvent{{ClientSeq: 1, Type: "T", Payload: []byte("p")}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	noise := make([]byte, 1<<16)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	const invalid = pb.ErrorCode_ERROR_CODE_INVALID_REQUEST
	for _, tc := range []struct {
		name string
		b    []byte
		code pb.ErrorCode
	}{
		{"empty", nil, invalid},
		{"cut short", valid[:len(valid)-3], invalid},
		{"noise", noise, invalid},
		{"a length beyond the end", append([]byte{0x1a}, 0xff, 0xff, 0xff, 0xff, 0x07), invalid},
		{"a length beyond 64 bits", append([]byte{0x1a}, bytes.Repeat([]byte{0xff}, 10)...), invalid},
		{"field number 0", []byte{0x02, 0x00}, invalid},
		{"an end without a beginning", []byte{0x1c}, invalid},
		{"not UTF-8", append(field(2, []byte{0xff, 0xfe}), valid...), invalid},
		{"deep groups", bytes.Repeat([]byte{0x0b}, 100_000), invalid},
		{"a million empty writes", bytes.Repeat(field(3, nil), 1_000_000), invalid},
		{"a million empty events", field(3, bytes.Repeat(field(2, nil), 1_000_000)), invalid},
		{"a million empty metadata entries", field(3, field(2, bytes.Repeat(field(8, nil), 1_000_000))), invalid},
		{"unknown fields only", bytes.Repeat(field(1000, []byte("x")), 500_000), invalid},
		{"too large", append(valid, field(1000, make([]byte, 5<<20))...), pb.ErrorCode_ERROR_CODE_REQUEST_TOO_LARGE},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := send(ctx, conn, pb.EventStoreService_Append_FullMethodName, tc.b)
			if got := api.CodeOf(err); got != tc.code {
				t.Errorf("answered with %v (%v), expected %v", got, err, tc.code)
			}
		})
	}
	// Any cut and any flipped byte of a good request is answered, one way or the other.
	for i := range valid {
		flipped := bytes.Clone(valid)
		flipped[i] ^= byte(1 + rng.IntN(255))
		for _, b := range [][]byte{valid[:i], flipped} {
			if err := send(t.Context(), conn, pb.EventStoreService_Append_FullMethodName, b); status.Code(err) == codes.Unavailable {
				t.Fatalf("byte %d: the connection was lost: %v", i, err)
			}
		}
	}
	f.aliveWithStrangers(t, n)
}

// aliveWithStrangers is alive when others may have written too, so positions are not dense.
func (f *fixture) aliveWithStrangers(t *testing.T, n *process.Node) {
	t.Helper()
	checkMemory(t, n)
	f.load(t, n, 100)
	n.Kill(t)
}

// Large messages from many connections at once must not add up without a bound.
func TestManyLargeMessagesAtOnce(t *testing.T) {
	f, n := newWireFixture(t)
	big := bytes.Repeat(field(3, nil), 2_000_000) // 4 MB, and 100 MB once decoded
	const callers = 32
	done := make(chan error, callers)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range callers {
		conn := n.Dial(t)
		// Ends with ctx.
		go func() { done <- send(ctx, conn, pb.EventStoreService_Append_FullMethodName, big) }()
	}
	for range callers {
		switch err := <-done; api.CodeOf(err) {
		case pb.ErrorCode_ERROR_CODE_INVALID_REQUEST, pb.ErrorCode_ERROR_CODE_SERVER_BUSY, pb.ErrorCode_ERROR_CODE_REQUEST_TOO_LARGE:
		default:
			t.Errorf("answered with %v, expected 2016, 2017 or 11000", err)
		}
	}
	f.alive(t, n)
}

// preface is how an HTTP/2 client begins, followed by empty settings.
var preface = append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0, 0, 0, 4, 0, 0, 0, 0, 0)

// frame is an HTTP/2 frame of a stream.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

func TestBytesThatAreNoRequest(t *testing.T) {
	f, n := newWireFixture(t)
	address, err := n.Address(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	probes, err := n.HTTPAddress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, b := range map[string][]byte{
		"noise":             noise,
		"HTTP/1":            []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"TLS":               append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, noise[:500]...),
		"half a preface":    preface[:10],
		"noise in frames":   join(preface, noise),
		"a frame too large": join(preface, []byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1}, noise),
		"headers of noise":  join(preface, frame(1, 4, 1, noise[:4000])),
		"headers without an end": join(preface, frame(1, 0, 1, noise[:100]),
			bytes.Repeat(frame(9, 0, 1, noise[:16000]), 200)),
		"settings over and over": join(preface, bytes.Repeat(frame(4, 0, 0, nil), 20_000)),
		"pings over and over":    join(preface, bytes.Repeat(frame(6, 0, 0, noise[:8]), 20_000)),
		"resets over and over":   join(preface, bytes.Repeat(frame(3, 0, 1, noise[:4]), 20_000)),
	} {
		t.Run(name, func(t *testing.T) {
			for i := range 20 {
				if err := blurt([]string{address, probes}[i%2], b); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	f.alive(t, n)
}

// blurt connects, writes as much as the other side takes, and closes.
func blurt(address string, b []byte) error {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return fmt.Errorf("the node takes no connections any more: %w", err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	_, _ = c.Write(b) // a server that hangs up is right to
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	answer := make([]byte, 1<<10)
	_, _ = c.Read(answer)
	return nil
}

// Clients that connect and say nothing, or stop in the middle of a message, keep their
// connection and nothing else; others are served.
func TestSilentConnectionsDoNotStopOthers(t *testing.T) {
	f, n := newWireFixture(t)
	address, err := n.Address(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		c, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			if _, err := c.Write(preface); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.alive(t, n)
}
