package model

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
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
	case "restart", "crash", "rebuild":
		if len(w.calls) > 0 {
			return "", fmt.Errorf("%s with calls in flight: release first", o.verb)
		}
		w.holding = false
		if w.srv == nil {
			return "serving", nil
		}
		cache := -1
		if c, ok := value(o.args, "cache"); ok {
			cache, _ = strconv.Atoi(c)
		}
		return "serving", w.srv.Restart(o.verb, cache)
	case "trim":
		v, err := strconv.ParseUint(o.args[1], 10, 64)
		w.m.Trim(w.key(o.args[0]), v)
		return "trimmed", err
	case "delete":
		w.m.Delete(w.key(o.args[0]), flag(o.args, "recreatable"), flag(o.args, "restart"))
		return "deleted", nil
	case "read":
		return w.read(ctx, o.read(w.org, w.m))
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

// point compares one unary read.
func point[Req any, Resp proto.Message](ctx context.Context, w *world, want Resp, refused *refusal, req Req,
	call func(pb.EventStoreServiceClient, context.Context, Req, ...grpc.CallOption) (Resp, error)) (string, error) {
	told := refused.text(w)
	if refused == nil {
		told = cmp.Or(w.text(want), "nothing")
	}
	if w.srv == nil {
		return told, nil
	}
	got, err := call(w.srv.Client(), ctx, req)
	if refused != nil || err != nil {
		return told, refused.check(w, err)
	}
	return told, same(want, got)
}

func (w *world) listMarks(ctx context.Context, o op) (string, error) {
	want := w.m.ListMarks(w.key(o.args[0]))
	told := cmp.Or(w.text(&pb.ListMarksResponse{Marks: want}), "none")
	if w.srv == nil {
		return told, nil
	}
	size := uint32(number(o.args, "page"))
	got := &pb.ListMarksResponse{}
	for token, pages := "", 0; ; pages++ {
		req := &pb.ListMarksRequest{Aggregate: w.key(o.args[0]), PageSize: size, PageToken: token, Consistency: consistency(o.args)}
		page, err := w.srv.Client().ListMarks(ctx, req)
		if err != nil {
			return told, err
		}
		if size > 0 && len(page.GetMarks()) > int(size) || pages > len(want) {
			return told, fmt.Errorf("page %d has %d marks of a page size of %d", pages, len(page.GetMarks()), size)
		}
		got.Marks = append(got.Marks, page.GetMarks()...)
		if token = page.GetNextPageToken(); token == "" {
			return told, same(&pb.ListMarksResponse{Marks: want}, got)
		}
	}
}

func (w *world) read(ctx context.Context, req *pb.ReadRequest) (string, error) {
	batches, end, code, detail := w.m.Read(req)
	var refused *refusal
	var lines []string
	if code != 0 {
		refused = refuse(code, nil)
		if detail != nil {
			refused = refuse(code, detail)
		}
		lines = append(lines, refused.text(w))
	} else {
		for _, b := range batches {
			lines = append(lines, "  "+w.text(b))
		}
		lines = append(lines, "  end "+w.text(end))
	}
	told := strings.TrimSpace(strings.Join(lines, "\n"))
	if w.srv == nil {
		return told, nil
	}
	stream, err := w.srv.Client().Read(ctx, req)
	if err != nil {
		return told, err
	}
	got := &pb.ReadResponse{}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) && refused == nil {
			return told, errors.Join(same(&pb.ReadResponse{Batches: batches, End: end}, got), checkChain(got.GetBatches(), req.GetFilter()))
		}
		if err != nil {
			return told, refused.check(w, err)
		}
		if got.GetEnd() != nil {
			return told, errors.New("the read goes on after its end")
		}
		proto.Merge(got, part)
	}
}

// checkChain recomputes the hashes of whole batches from what a read returned.
func checkChain(batches []*pb.Batch, f *pb.Filter) error {
	if f != nil {
		return nil // without the events that were filtered out nothing can be recomputed
	}
	for i, b := range batches {
		if !bytes.Equal(chainHash(b), b.GetChainHash()) {
			return fmt.Errorf("version %d: the chain hash is not that of the batch", b.GetVersion())
		}
		if i > 0 && b.GetVersion() == batches[i-1].GetVersion()+1 && !bytes.Equal(b.GetPreviousChainHash(), batches[i-1].GetChainHash()) {
			return fmt.Errorf("version %d does not follow on its predecessor's chain hash", b.GetVersion())
		}
	}
	return nil
}

// append lets the model judge, makes the call, and compares, at once or at the release.
func (w *world) append(ctx context.Context, req *pb.AppendRequest) (string, error) {
	c := &call{req: req, answer: w.m.Append(req), done: make(chan struct{})}
	if c.answer.Admitted == nil && c.answer.Wait == nil {
		if w.srv != nil {
			c.resp, c.err = w.srv.Client().Append(ctx, req)
		}
		return w.settle(c, c.answer.Original)
	}
	if !w.holding {
		if w.srv != nil {
			c.resp, c.err = w.srv.Client().Append(ctx, req)
		}
		return w.commit(c)
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
	return told, w.awaitAdmitted(ctx, c)
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

// release lets everything in flight commit, in the order of admission.
func (w *world) release() (string, error) {
	if w.srv != nil {
		w.srv.Release()
	}
	w.holding = false
	lines := []string{"released"}
	var differences []error
	calls := w.calls
	w.calls = nil
	for _, c := range calls {
		<-c.done
		var told string
		var err error
		if c.answer.Wait == nil {
			told, err = w.commit(c)
		} else {
			again := w.m.Append(c.req) // what it waited for has landed: calls before it are settled
			told, err = w.settle(c, again.Original)
		}
		lines = append(lines, fmt.Sprintf("  #%d %s", c.number, told))
		if err != nil {
			differences = append(differences, fmt.Errorf("#%d: %w", c.number, err))
		}
	}
	return strings.Join(lines, "\n"), errors.Join(differences...)
}

// commit tells the model that an admitted request landed, when the server says so.
func (w *world) commit(c *call) (string, error) {
	at := &timestamppb.Timestamp{Seconds: int64(w.m.position)}
	if w.srv != nil {
		if c.err != nil || len(c.resp.GetResults()) == 0 {
			return "", fmt.Errorf("refused: %s; the contract admits it", w.describe(c.resp, c.err))
		}
		at = c.resp.GetResults()[0].GetCommittedAt()
		if now := at.AsTime(); now.Before(w.m.LastCommitted()) || time.Since(now).Abs() > time.Minute {
			return "", fmt.Errorf("committed_at %s: it follows %s, and the clock is now", now, w.m.LastCommitted())
		}
	}
	return w.settle(c, w.m.Commit(c.answer.Admitted, at))
}

// settle compares an answer: results if there are any, else the refusal.
func (w *world) settle(c *call, results []*pb.WriteResult) (string, error) {
	if results != nil {
		want := &pb.AppendResponse{RequestId: c.req.GetRequestId(), Results: results, Timeline: w.m.Timeline}
		if w.srv == nil {
			return "ok " + w.text(want), nil
		}
		if c.err != nil {
			return "ok " + w.text(want), fmt.Errorf("refused: %s", w.describe(nil, c.err))
		}
		return "ok " + w.text(want), same(want, c.resp)
	}
	var would []*refusal
	if f := c.answer.Failure; f != nil {
		would = append(would, refuse(f.GetCode(), f))
	}
	for _, code := range c.answer.Codes {
		would = append(would, refuse(code, nil))
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

// refusal is an error as the contract wants it on the wire.
type refusal struct {
	code   pb.ErrorCode
	detail proto.Message
}

func refuse(code pb.ErrorCode, detail proto.Message) *refusal { return &refusal{code, detail} }

// text is the code and the detail; a detail that repeats the code says it once.
func (r *refusal) text(w *world) string {
	if r == nil {
		return ""
	}
	out := strconv.Itoa(int(r.code))
	if r.detail != nil {
		out += " " + strings.TrimPrefix(w.text(r.detail), "code="+out+" ")
	}
	return out
}

// statuses is table 4 for the codes that the model predicts.
var statuses = map[pb.ErrorCode]codes.Code{
	1000: codes.OutOfRange, 1001: codes.NotFound, 2000: codes.InvalidArgument, 2001: codes.InvalidArgument, 2002: codes.AlreadyExists,
	2003: codes.FailedPrecondition, 2005: codes.NotFound, 2006: codes.FailedPrecondition, 2013: codes.Aborted, 2016: codes.InvalidArgument,
	2019: codes.InvalidArgument, 2030: codes.FailedPrecondition, 2031: codes.FailedPrecondition, 7001: codes.NotFound,
}

// check compares an error with the refusal: the gRPC status, ErrorInfo, the typed detail, a
// BadRequest that names a field with 2016, and nothing else.
func (r *refusal) check(w *world, err error) error {
	if r == nil {
		return fmt.Errorf("refused: %s; the contract answers it", w.describe(nil, err))
	}
	st := status.Convert(err)
	if err == nil || st.Code() != statuses[r.code] {
		return fmt.Errorf("status %s of %s, not %s", st.Code(), w.describe(nil, err), statuses[r.code])
	}
	var info *errdetails.ErrorInfo
	var rest []proto.Message
	named := false
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.BadRequest:
			named = len(d.GetFieldViolations()) > 0 && d.GetFieldViolations()[0].GetField() != ""
		case proto.Message:
			rest = append(rest, d)
		default:
			return fmt.Errorf("undecodable detail %v", d)
		}
	}
	want := &errdetails.ErrorInfo{
		Domain: "tidemark", Reason: strings.TrimPrefix(r.code.String(), "ERROR_CODE_"),
		Metadata: map[string]string{"code": strconv.Itoa(int(r.code))},
	}
	if err := same(want, info); err != nil {
		return err
	}
	if named != (r.code == pb.ErrorCode_ERROR_CODE_INVALID_REQUEST) {
		return fmt.Errorf("a field is named: %v, by %s", named, w.describe(nil, st.Err()))
	}
	switch {
	case r.detail == nil && len(rest) == 0:
		return nil
	case r.detail == nil || len(rest) != 1:
		return fmt.Errorf("%d details, not the one of %d", len(rest), r.code)
	}
	return same(r.detail, rest[0])
}

// same compares messages by every field.
func same(want, got proto.Message) error {
	if proto.Equal(want, got) {
		return nil
	}
	return fmt.Errorf("the contract says\n    %s\n  the server\n    %s", prototext.Format(want), prototext.Format(got))
}

func (w *world) describe(resp *pb.AppendResponse, err error) string {
	if err == nil {
		return "ok " + w.text(resp)
	}
	out := []string{err.Error()}
	for _, d := range status.Convert(err).Details() {
		if m, ok := d.(proto.Message); ok {
			out = append(out, w.text(m))
		}
	}
	return strings.Join(out, "; ")
}
