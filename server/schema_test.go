package server

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// The shape of what schemas are asked for with; how registrations are judged is the shard's.
func TestShapeOfSchemaRequests(t *testing.T) {
	good := &pb.RegisterSchemaRequest{Org: "acme", Type: "orders", EventType: "Placed", Format: 1, Definition: []byte("{}")}
	register := func(change func(*pb.RegisterSchemaRequest)) *pb.RegisterSchemaRequest {
		r := proto.Clone(good).(*pb.RegisterSchemaRequest)
		change(r)
		return r
	}
	const part = "; expected 1..200 bytes of UTF-8 without control characters or '/' (found %d bytes)"
	for _, c := range []struct {
		name string
		err  *api.Error
		want string
	}{
		{"a registration", checkRegisterSchema(good), ""},
		{"a format of later is the shard's", checkRegisterSchema(register(func(r *pb.RegisterSchemaRequest) { r.Format = 9 })), ""},
		{"the largest definition", checkRegisterSchema(register(func(r *pb.RegisterSchemaRequest) { r.Definition = make([]byte, 512<<10) })), ""},
		{"a larger one", checkRegisterSchema(register(func(r *pb.RegisterSchemaRequest) { r.Definition = make([]byte, 512<<10+1) })),
			"2016 InvalidRequest: definition has 524289 bytes; the limit is 524288"},
		{"no definition", checkRegisterSchema(register(func(r *pb.RegisterSchemaRequest) { r.Definition = nil })), "2016 InvalidRequest: definition is empty"},
		{"no org", checkRegisterSchema(register(func(r *pb.RegisterSchemaRequest) { r.Org = "" })), "2016 InvalidRequest: org is empty" + fmt.Sprintf(part, 0)},
		{"a type with a slash", checkRegisterSchema(register(func(r *pb.RegisterSchemaRequest) { r.Type = "a/b" })), "2016 InvalidRequest: type has a '/'" + fmt.Sprintf(part, 3)},
		{"no event type", checkRegisterSchema(register(func(r *pb.RegisterSchemaRequest) { r.EventType = "" })), "2016 InvalidRequest: event_type is empty; expected 1..200 bytes"},
		{"a long event type", checkRegisterSchema(register(func(r *pb.RegisterSchemaRequest) { r.EventType = strings.Repeat("x", 201) })), "2016 InvalidRequest: event_type has 201 bytes; the limit is 200"},
		{"an event type with a zero byte", checkRegisterSchema(register(func(r *pb.RegisterSchemaRequest) { r.EventType = "a\x00b" })),
			"2016 InvalidRequest: event_type has a zero byte, which the event type of a schema cannot have"},
		{"a message of JSON", checkRegisterSchema(register(func(r *pb.RegisterSchemaRequest) { r.Message = "m" })), "2016 InvalidRequest: message is set; only a Protobuf schema has messages"},
		{"a list of an event type alone", checkListSchemas(&pb.ListSchemasRequest{Org: "acme", EventType: "x"}), "2016 InvalidRequest: event_type is given without type, which it needs"},
		{"a list of no org", checkListSchemas(&pb.ListSchemasRequest{}), "2016 InvalidRequest: org is empty" + fmt.Sprintf(part, 0)},
		{"a large page", checkListSchemas(&pb.ListSchemasRequest{Org: "acme", PageSize: 1001}), "2016 InvalidRequest: page_size is 1001; the limit is 1000"},
	} {
		got := ""
		if c.err != nil {
			got = c.err.Error()
		}
		if got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}
