package main

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// An event that was refused because another one has its sequence and its id was said to have
// landed, whatever had.
func TestAppendComparesContentBeforeItSaysThatAnEventLanded(t *testing.T) {
	const (
		landed  = "This event had landed already: an earlier call wrote it as version 3. There is nothing left to do."
		other   = "Sequence 7 was recorded in version 3 with this event id and other content. Yours was not written. To see what was: tidemark find acme/orders/4821 billing 7"
		unknown = "An event with this id and sequence landed as version 3; its content could not be read to compare it. To have the server compare, send the same again with --confirm. To see what is left of it: tidemark find acme/orders/4821 billing 7"
	)
	recorded := func(change func(*pb.Event)) func(*pb.FindEventRequest) (*pb.FindEventResponse, error) {
		e := &pb.Event{ClientSeq: 7, EventId: "pay-77", Type: "OrderPaid", Payload: []byte(`{"total":12}`), ContentType: "application/json", EventNumber: 4}
		if change != nil {
			change(e)
		}
		return func(*pb.FindEventRequest) (*pb.FindEventResponse, error) {
			return &pb.FindEventResponse{Found: true, Holder: holder(nil), EventIndex: 1, Batch: &pb.Batch{Version: 3, Events: []*pb.Event{{ClientSeq: 6}, e}}}, nil
		}
	}
	for _, c := range []struct {
		name string
		find func(*pb.FindEventRequest) (*pb.FindEventResponse, error)
		args []string
		want string
	}{
		{"the same", recorded(nil), nil, landed},
		{"the same, with a schema", recorded(func(e *pb.Event) { e.Schema = &pb.SchemaVersion{Major: 1} }), nil, landed},
		{"the server has compared", nil, []string{"--confirm"}, landed},
		{"another type", recorded(func(e *pb.Event) { e.Type = "Refunded" }), nil, other},
		{"another payload", recorded(func(e *pb.Event) { e.Payload = []byte(`{"total":999}`) }), nil, other},
		{"another content type", recorded(func(e *pb.Event) { e.ContentType = "" }), nil, other},
		{"another schema", recorded(func(e *pb.Event) { e.Schema = &pb.SchemaVersion{Major: 2} }), nil, other},
		{"another time", recorded(func(e *pb.Event) { e.OccurredAt = at(3) }), nil, other},
		{"other metadata", recorded(func(e *pb.Event) { e.Metadata = map[string]string{"k": "v"} }), nil, other},
		{"encrypted", recorded(func(e *pb.Event) { e.Encryption = &pb.Encryption{Scheme: "s"} }), nil, other},
		{"trimmed", func(*pb.FindEventRequest) (*pb.FindEventResponse, error) {
			return &pb.FindEventResponse{Found: true, Holder: holder(func(h *pb.Holder) { h.Trimmed = true })}, nil
		}, nil, unknown},
		{"recorded again meanwhile", func(*pb.FindEventRequest) (*pb.FindEventResponse, error) {
			resp, err := recorded(nil)(nil)
			resp.Holder.Position++
			return resp, err
		}, nil, unknown},
		{"no answer", nil, nil, unknown},
	} {
		for _, code := range []pb.ErrorCode{pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION, pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION} {
			store := refuse(api.Errorf(code, "refused").With(failureDetail(code, func(d *pb.AppendFailure) { d.Holder = holder(nil) })))
			store.find = c.find
			args := appendArgs(store.start(t), append([]string{"--event-id", "pay-77", "--timeline", "00112233445566778899aabbccddeeff"}, c.args...)...)
			_, _, stderr := runCommand(t, args...)
			lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
			if got := lines[len(lines)-1]; got != c.want {
				t.Errorf("%s, %v: %q, want %q", c.name, code, got, c.want)
			}
			if c.args != nil {
				continue
			}
			want := &pb.FindEventRequest{Aggregate: order(), ClientId: "billing", ClientSeq: 7, Timeline: "00112233445566778899aabbccddeeff"}
			all := store.all()
			if got := all[len(all)-1]; !proto.Equal(got, want) {
				t.Errorf("%s: asked %v, want %v", c.name, got, want)
			}
		}
	}
}
