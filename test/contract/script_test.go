package contract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// TestScripts runs the scripts. Their commands:
//
//	node [free-disk=BYTES] [in-flight=BYTES] [calls=N] [request=BYTES]
//	    a new node; the one before ends
//	append client=ID [confirm] [timeline=T] [request-id=R] [async=NAME]
//	    one line a write: AGGREGATE [seq=N,N..] [id=ID] [type=T] [payload=BYTES] [expect=V] [create] [enforce] [prev=N]
//	    (type=- and agg - are empty; async goes on, and tells when the call is in flight)
//	await NAME          the answer of an async append
//	trim AGGREGATE keep=V [expect=V] [timeline=T]
//	delete [timeline=T] [async=NAME]
//	    one line an aggregate: AGGREGATE [expect=V] [recreate] [restart] [forget]
//	hold | release      what is admitted stays in flight in between
//	stop-shard          the shard ends under the server, as at the end of a shutdown
//	read AGGREGATE [from=V] [to=V] [limit=N] [backward] [direction=N] [consistency=N] [min-position=N] [timeline=T] [seq-from=N] [seq-to=N]
//	aggregate|mark|marks|find AGGREGATE [client=ID] [seq=N] [consistency=N] [min-position=N] [timeline=T] [page=N] [token=T]
//	position            how many changes are committed
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{async: map[string]chan string{}}
		defer func() {
			if s.node != nil {
				s.node.stop(t)
			}
		}()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
	})
}

type script struct {
	node  *node
	async map[string]chan string
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	ctx := testContext(t)
	a := arguments{d.CmdArgs}
	switch d.Cmd {
	case "node":
		if s.node != nil {
			s.node.stop(t)
		}
		s.node = startNode(t, settings{
			freeDisk: int64(a.number("free-disk")), inFlight: int64(a.number("in-flight")),
			maxCalls: int(a.number("calls")), maxRequest: int(a.number("request")),
		})
		return "ready"
	case "hold", "release":
		s.node.gate.set(d.Cmd == "hold")
		return d.Cmd
	case "stop-shard":
		s.node.endShard(t)
		return "stopped"
	case "position":
		return s.node.position()
	case "await":
		select {
		case answer := <-s.async[a.first()]:
			return answer
		case <-ctx.Done():
			return "no answer"
		}
	case "append":
		return s.append(t, ctx, a, d.Input)
	case "read":
		return s.read(ctx, a)
	case "trim":
		return s.trim(ctx, a)
	case "delete":
		return s.delete(t, ctx, a, d.Input)
	}
	return s.point(t, ctx, d.Cmd, a)
}

func (s *script) append(t *testing.T, ctx context.Context, a arguments, input string) string {
	req := &pb.AppendRequest{ClientId: a.value("client"), Timeline: a.value("timeline"), RequestId: a.value("request-id")}
	if a.has("confirm") {
		req.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM
	}
	for _, line := range strings.Split(input, "\n") {
		if line != "" {
			req.Writes = append(req.Writes, write(line))
		}
	}
	call := func(ctx context.Context) string {
		resp, err := s.node.client.Append(ctx, req)
		return s.answer(resp, err)
	}
	return s.maybeAsync(t, ctx, a.value("async"), call)
}

// write reads one write of an append.
func write(line string) *pb.Write {
	words := strings.Fields(line)
	w := &pb.Write{Aggregate: key(words[0])}
	e := &pb.NewEvent{Type: "Placed"}
	var seqs []uint64
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		n, _ := strconv.ParseUint(value, 10, 64)
		switch name {
		case "seq":
			for _, s := range strings.Split(value, ",") {
				n, _ := strconv.ParseUint(s, 10, 64)
				seqs = append(seqs, n)
			}
		case "id":
			e.EventId = value
		case "type":
			e.Type = strings.TrimPrefix(value, "-")
		case "payload":
			e.Payload = make([]byte, n)
		case "occurred":
			e.OccurredAt = &timestamppb.Timestamp{Seconds: int64(n)}
		case "expect":
			w.ExpectedVersion = proto.Uint64(n)
		case "create":
			w.AllowCreate = true
		case "enforce":
			w.EnforceClientIdempotency = true
		case "prev":
			w.PreviousClientSeq = proto.Uint64(n)
		}
	}
	for _, seq := range seqs {
		next := proto.Clone(e).(*pb.NewEvent)
		next.ClientSeq = seq
		w.Events = append(w.Events, next)
	}
	return w
}

func (s *script) read(ctx context.Context, a arguments) string {
	req := &pb.ReadRequest{
		Aggregate: key(a.first()), FromVersion: a.number("from"), ToVersion: a.number("to"), Limit: uint32(a.number("limit")),
		Direction: pb.Direction(a.number("direction")), Consistency: pb.Consistency(a.number("consistency")),
		MinPosition: a.number("min-position"), Timeline: a.value("timeline"),
	}
	if a.has("backward") {
		req.Direction = pb.Direction_DIRECTION_BACKWARD
	}
	if from, to := a.number("seq-from"), a.number("seq-to"); from+to > 0 {
		req.Filter = &pb.Filter{ClientSeqFrom: from, ClientSeqTo: to}
	}
	stream, err := s.node.client.Read(ctx, req)
	if err != nil {
		return failureText(err, s.timeline())
	}
	var lines []string
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return strings.Join(lines, "\n")
		case err != nil:
			return strings.Join(append(lines, failureText(err, s.timeline())), "\n")
		}
		for _, b := range m.GetBatches() {
			lines = append(lines, text(b))
		}
		if m.GetEnd() != nil {
			lines = append(lines, "end "+text(m.GetEnd()))
		}
	}
}

// point makes the other reads.
func (s *script) point(t *testing.T, ctx context.Context, cmd string, a arguments) string {
	k, client, seq := key(a.first()), a.value("client"), a.number("seq")
	c, position, timeline := pb.Consistency(a.number("consistency")), a.number("min-position"), a.value("timeline")
	switch cmd {
	case "aggregate":
		resp, err := s.node.client.GetAggregate(ctx, &pb.GetAggregateRequest{Aggregate: k, Consistency: c, MinPosition: position, Timeline: timeline})
		return s.answer(resp, err)
	case "mark":
		resp, err := s.node.client.GetMark(ctx, &pb.GetMarkRequest{Aggregate: k, ClientId: client, Consistency: c, MinPosition: position, Timeline: timeline})
		return s.answer(resp, err)
	case "marks":
		resp, err := s.node.client.ListMarks(ctx, &pb.ListMarksRequest{Aggregate: k, PageSize: uint32(a.number("page")), PageToken: a.value("token"), Consistency: c, MinPosition: position, Timeline: timeline})
		return s.answer(resp, err)
	case "find":
		resp, err := s.node.client.FindEvent(ctx, &pb.FindEventRequest{Aggregate: k, ClientId: client, ClientSeq: seq, Consistency: c, MinPosition: position, Timeline: timeline})
		return s.answer(resp, err)
	}
	t.Fatalf("unknown command %q", cmd)
	return ""
}

func (s *script) answer(resp proto.Message, err error) string {
	if err != nil {
		return failureText(err, s.timeline())
	}
	return "ok " + text(resp)
}

func (s *script) timeline() string { return s.node.shard.Status().Timeline }

// key reads an aggregate; "-" is an absent one.
func key(s string) *pb.AggregateKey {
	if s == "-" {
		return nil
	}
	parts := strings.SplitN(s, "/", 3)
	for len(parts) < 3 {
		parts = append(parts, "")
	}
	return &pb.AggregateKey{Org: parts[0], Type: parts[1], Id: parts[2]}
}

// arguments are the words of a command.
type arguments struct{ words []datadriven.CmdArg }

func (a arguments) first() string {
	if len(a.words) == 0 {
		return "-"
	}
	return a.words[0].Key
}

func (a arguments) has(name string) bool {
	for _, w := range a.words {
		if w.Key == name {
			return true
		}
	}
	return false
}

func (a arguments) value(name string) string {
	for _, w := range a.words {
		if w.Key == name {
			return strings.Join(w.Vals, ",")
		}
	}
	return ""
}

func (a arguments) number(name string) uint64 {
	v := a.value(name)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("%s=%s is no number", name, v))
	}
	return n
}
