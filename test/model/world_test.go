package model

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// patience bounds every single call: a call that should have been refused but was admitted
// behind held writes would never answer.
const patience = 10 * time.Second

// driven is what a world drives beside the model; the methods other than Client are hooks.
type driven interface {
	Client() pb.EventStoreServiceClient
	// Hold keeps what is admitted from now on out of the log until Release.
	Hold()
	Release()
	// Lose releases, and has raft give back the entry that stands first.
	Lose()
	// Standing returns when the first entry stands before raft.
	Standing(ctx context.Context) error
	// Compact drops what is not needed any more, at rest.
	Compact(ctx context.Context) error
	// Restart ends the server and opens its directory again; cache is the entries that its
	// caches may hold, -1 for the default. How: restart, crash or rebuild.
	Restart(how string, cache int) error
}

// world runs ops on the model and on a server, and tells where they differ.
type world struct {
	m       *Model
	srv     driven // nil: the model alone
	org     string
	base    uint64 // texts count positions from here
	holding bool
	calls   []*call // not answered yet, in the order they were made
	made    int
}

// call is an append that waits for what is held.
type call struct {
	number int
	req    *pb.AppendRequest
	answer Answer // Admitted or Wait
	resp   *pb.AppendResponse
	err    error
	done   chan struct{}
}

// newWorld is a world of its own on a server that others may have used before, up to the
// position base: its aggregates are those of org. It learns the timeline from the server.
func newWorld(srv driven, org string, base uint64) (*world, error) {
	w := &world{m: New(), srv: srv, org: org, base: base}
	w.m.position = base
	w.m.Timeline = "00000000000000000000000000000000"
	if srv == nil {
		return w, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	mark, err := srv.Client().GetMark(ctx, &pb.GetMarkRequest{Aggregate: w.key("A"), ClientId: "a"})
	if err != nil {
		return nil, err
	}
	if w.m.Timeline = mark.GetTimeline(); len(w.m.Timeline) != 32 || strings.Trim(w.m.Timeline, "0123456789abcdef") != "" {
		return nil, fmt.Errorf("timeline %q is not 32 hex digits", w.m.Timeline)
	}
	return w, nil
}

func (w *world) key(id string) *pb.AggregateKey { return key(w.org, id) }

// run executes one op on both sides. The text is the whole answer; the error is a
// difference.
func (w *world) run(o op) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch o.verb {
	case "append":
		return w.append(ctx, o.request(w.org))
	case "hold":
		if w.holding = true; w.srv != nil {
			w.srv.Hold()
		}
		return "held", nil
	case "release":
		return w.release()
	case "lose":
		return w.lose()
	case "restart", "crash", "rebuild":
		return w.restart(ctx, o)
	case "compact":
		if w.holding {
			return "", errHeld
		}
		if w.srv == nil {
			return "compacted", nil
		}
		return "compacted", w.srv.Compact(ctx)
	case "trim":
		return w.trim(ctx, o)
	case "delete":
		return w.delete(ctx, o)
	case "read":
		return w.read(ctx, o.read(w.org, w.m))
	case "readall":
		return w.readAll(ctx, o.readAll(w.org, w.m, w.base))
	case "aggregate":
		want := w.m.GetAggregate(w.key(o.args[0]))
		req := &pb.GetAggregateRequest{Aggregate: w.key(o.args[0]), Consistency: consistency(o.args)}
		if want == nil {
			return point(ctx, w, (*pb.GetAggregateResponse)(nil), refuse(pb.ErrorCode_ERROR_CODE_AGGREGATE_DETAILS_NOT_FOUND, nil), req, pb.EventStoreServiceClient.GetAggregate)
		}
		return point(ctx, w, want, nil, req, pb.EventStoreServiceClient.GetAggregate)
	case "mark":
		req := &pb.GetMarkRequest{Aggregate: w.key(o.args[0]), ClientId: o.args[1], Consistency: consistency(o.args)}
		return point(ctx, w, w.m.GetMark(w.key(o.args[0]), o.args[1]), nil, req, pb.EventStoreServiceClient.GetMark)
	case "find":
		seq, err := strconv.ParseUint(o.args[2], 10, 64)
		if err != nil {
			return "", err
		}
		req := &pb.FindEventRequest{Aggregate: w.key(o.args[0]), ClientId: o.args[1], ClientSeq: seq, Consistency: consistency(o.args)}
		return point(ctx, w, w.m.FindEvent(w.key(o.args[0]), o.args[1], seq), nil, req, pb.EventStoreServiceClient.FindEvent)
	case "marks":
		return w.listMarks(ctx, o)
	}
	return "", fmt.Errorf("unknown op %q", o)
}

// append lets the model judge, makes the call, and compares, at once or at the release.
func (w *world) append(ctx context.Context, req *pb.AppendRequest) (string, error) {
	c := &call{req: req, answer: w.m.Append(req), done: make(chan struct{})}
	if c.answer.Admitted == nil && c.answer.Wait == nil {
		if w.srv != nil {
			c.resp, c.err = w.srv.Client().Append(ctx, req)
		}
		return w.settle(c, c.answer)
	}
	if !w.holding {
		if w.srv != nil {
			c.resp, c.err = w.srv.Client().Append(ctx, req)
		}
		return w.decide(c)
	}
	w.made++
	c.number = w.made
	w.calls = append(w.calls, c)
	told := fmt.Sprintf("#%d in flight", c.number)
	if c.answer.Wait != nil {
		told = fmt.Sprintf("#%d waits", c.number)
	}
	if w.srv == nil {
		close(c.done)
		return told, nil
	}
	// Ends with the call: at the release, or when patience does.
	client := w.srv.Client()
	go func() {
		defer close(c.done)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c.resp, c.err = client.Append(ctx, req)
	}()
	if c.answer.Wait != nil {
		return told, nil // whether it attaches now or asks after the release, the answer is one
	}
	if err := w.awaitAdmitted(ctx, c); err != nil || len(w.m.flight) > 1 {
		return told, err
	}
	// The first is alone in the entry that waits, so that losing it loses nothing else.
	return told, w.srv.Standing(ctx)
}

// awaitAdmitted returns when the server has admitted c, without a hook: it asks with a write
// that can never be admitted what version the aggregate will have (2.2).
func (w *world) awaitAdmitted(ctx context.Context, c *call) error {
	s := w.m.standing(c.req, 0)
	probe := &pb.AppendRequest{ClientId: "probe", Writes: []*pb.Write{
		{Aggregate: s.w.GetAggregate(), Events: []*pb.NewEvent{newEvent("1")}, AllowCreate: true, ExpectedVersion: &s.committed},
		{Aggregate: w.key("never"), Events: []*pb.NewEvent{newEvent("1")}, AllowCreate: true, ExpectedVersion: proto.Uint64(99)},
	}}
	for {
		_, err := w.srv.Client().Append(ctx, probe)
		f := failure(err)
		if f == nil {
			return fmt.Errorf("while #%d is waited for: %w", c.number, err)
		}
		if f.GetInFlightVersion() >= s.committed+s.ahead {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("the contract admits #%d, and it was answered %s", c.number, w.describe(c.resp, c.err))
		default:
		}
	}
}

// restart ends the server, with or without calls in flight, and opens it again. Calls that
// it cuts off may have landed or not, a first part of them at that; they are told nothing
// that is wrong, and nothing definite unless they know.
func (w *world) restart(ctx context.Context, o op) (string, error) {
	if w.srv == nil {
		_, err := w.decided("", nil)
		return "serving", err
	}
	cache := -1
	if c, ok := value(o.args, "cache"); ok {
		cache, _ = strconv.Atoi(c)
	}
	if err := w.srv.Restart(o.verb, cache); err != nil {
		return "serving", err
	}
	w.holding = false
	calls := w.calls
	w.calls = nil
	for _, c := range calls {
		<-c.done
		if c.answer.Wait != nil {
			if answer := w.m.judge(c.req); c.err == nil && (answer == nil || answer.Results == nil) {
				return "serving", fmt.Errorf("#%d was confirmed, and the contract does not: %s", c.number, w.describe(c.resp, nil))
			}
			continue
		}
		landed, err := w.recorded(ctx, c)
		switch {
		case err != nil:
			return "serving", err
		case landed == nil && c.err == nil:
			return "serving", fmt.Errorf("#%d was acknowledged, and is gone: %s", c.number, w.describe(c.resp, nil))
		case landed == nil:
			w.m.Lose(c.answer.Admitted)
		case c.err == nil:
			if _, err := w.decide(c); err != nil {
				return "serving", fmt.Errorf("#%d: %w", c.number, err)
			}
		default:
			if code := status.Code(c.err); code != codes.Unknown && !strings.Contains(c.err.Error(), "transport") && !strings.Contains(c.err.Error(), "EOF") {
				return "serving", fmt.Errorf("#%d landed, and was told that it did not: %s", c.number, w.describe(nil, c.err))
			}
			w.m.Decide(c.answer.Admitted, landed.GetCommittedAt())
		}
	}
	return "serving", nil
}

// recorded is the batch that the oldest request in flight has written, nil if it has not:
// the next version of its first aggregate is it or nothing, for what was in flight behind
// it cannot have landed without it.
func (w *world) recorded(ctx context.Context, c *call) (*pb.Batch, error) {
	s := w.m.standing(c.req, 0)
	stream, err := w.srv.Client().Read(ctx, &pb.ReadRequest{Aggregate: s.w.GetAggregate(), FromVersion: s.committed + 1, Limit: 1})
	for err == nil {
		var part *pb.ReadResponse
		if part, err = stream.Recv(); err == nil && len(part.GetBatches()) > 0 {
			return part.GetBatches()[0], nil
		}
	}
	if errors.Is(err, io.EOF) || status.Code(err) == codes.NotFound {
		return nil, nil
	}
	return nil, err
}

// finish releases what is held and reads everything there is.
func (w *world) finish() error {
	if w.holding {
		if _, err := w.release(); err != nil {
			return err
		}
	}
	return w.compareReads()
}

// abort ends the calls of a world that is not compared any further.
func (w *world) abort() error {
	w.srv.Release()
	for _, c := range w.calls {
		select {
		case <-c.done:
		case <-time.After(2 * patience):
			return fmt.Errorf("#%d was never answered", c.number)
		}
	}
	w.calls = nil
	return nil
}

// compareReads reads everything there is.
func (w *world) compareReads() error {
	if _, err := w.run(op{verb: "readall"}); err != nil {
		return fmt.Errorf("readall: %w", err)
	}
	for _, id := range aggregates {
		reads := []op{{verb: "read", args: []string{id}}, {verb: "aggregate", args: []string{id}}, {verb: "marks", args: []string{id}}}
		for _, client := range writers {
			reads = append(reads, op{verb: "mark", args: []string{id, client}})
		}
		for _, o := range reads {
			if _, err := w.run(o); err != nil {
				return fmt.Errorf("%s: %w", o, err)
			}
		}
	}
	return nil
}

// release lets everything in flight be decided, in the order of admission.
func (w *world) release() (string, error) {
	if w.srv != nil {
		w.srv.Release()
	}
	return w.decided("released", nil)
}

// lose makes the first entry in flight, which holds the oldest request alone, come back from
// raft as in no log. What was admitted behind it is decided without it.
func (w *world) lose() (string, error) {
	lost := w.calls[0]
	w.m.Lose(lost.answer.Admitted)
	if w.srv != nil {
		w.srv.Lose()
	}
	return w.decided("released", lost)
}

// waits says that a call in flight is a CONFIRM that waits for another.
func (w *world) waits() bool {
	return slices.ContainsFunc(w.calls, func(c *call) bool { return c.answer.Wait != nil })
}

// decided settles the calls in flight; lost is one of them, which is told so.
func (w *world) decided(told string, lost *call) (string, error) {
	w.holding = false
	lines := []string{told}
	var differences []error
	calls := w.calls
	w.calls = nil
	for _, c := range calls {
		<-c.done
		var told string
		var err error
		switch {
		case c == lost:
			told, err = w.settle(c, Answer{Codes: []pb.ErrorCode{pb.ErrorCode_ERROR_CODE_NOT_LEADER}})
		case c.answer.Wait == nil:
			told, err = w.decide(c)
		default: // what it waited for has landed: calls before it are settled
			told, err = w.settle(c, w.m.Append(c.req))
		}
		lines = append(lines, fmt.Sprintf("  #%d %s", c.number, told))
		if err != nil {
			differences = append(differences, fmt.Errorf("#%d: %w", c.number, err))
		}
	}
	return strings.Join(lines, "\n"), errors.Join(differences...)
}

// decide lets the model decide an admitted request, and tells it the time if the server
// says that it landed.
func (w *world) decide(c *call) (string, error) {
	at := &timestamppb.Timestamp{Seconds: int64(w.m.position)}
	if r := c.resp.GetResults(); w.srv != nil && len(r) > 0 && !r[0].GetAlreadyCommitted() {
		at = r[0].GetCommittedAt()
		if now := at.AsTime(); now.Before(w.m.LastCommitted()) || time.Since(now).Abs() > time.Minute {
			return "", fmt.Errorf("committed_at %s: it follows %s, and the clock is now", now, w.m.LastCommitted())
		}
	}
	return w.settle(c, w.m.Decide(c.answer.Admitted, at))
}

// settle compares an answer with what the contract says.
func (w *world) settle(c *call, answer Answer) (string, error) {
	if answer.Results != nil {
		want := &pb.AppendResponse{RequestId: c.req.GetRequestId(), Results: answer.Results, Timeline: w.m.Timeline}
		if w.srv == nil {
			return "ok " + w.text(want), nil
		}
		if c.err != nil {
			return "ok " + w.text(want), fmt.Errorf("refused: %s; the contract answers ok", w.describe(nil, c.err))
		}
		return "ok " + w.text(want), same(want, c.resp)
	}
	var would []*refusal
	if f := answer.Failure; f != nil {
		would = append(would, refuse(f.GetCode(), f))
	}
	for _, code := range answer.Codes {
		r := refuse(code, nil)
		if code == pb.ErrorCode_ERROR_CODE_NOT_LEADER {
			r.detail = &pb.NotLeader{}
		}
		would = append(would, r)
	}
	told := would[0].text(w)
	if w.srv == nil {
		return told, nil
	}
	if c.err == nil {
		return told, fmt.Errorf("accepted: %s; the contract refuses it: %s", w.describe(c.resp, nil), told)
	}
	var differences []error
	for _, r := range would {
		err := r.check(w, c.err)
		if err == nil {
			return told, nil
		}
		differences = append(differences, err)
	}
	return told, errors.Join(differences...)
}
