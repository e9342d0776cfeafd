package server

import (
	"context"
	"strings"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
)

const (
	// maxDefinition is the most bytes of a schema's definition.
	maxDefinition = 512 << 10
	// maxMessageName is the most bytes of the name of a Protobuf message.
	maxMessageName = 1000
	// schemaBytes is about what one schema takes in a list, without its definition.
	schemaBytes = 2 << 10
)

// RegisterSchema implements pb.EventStoreServiceServer.
func (s *eventStore) RegisterSchema(ctx context.Context, req *pb.RegisterSchemaRequest) (*pb.RegisterSchemaResponse, error) {
	if e := checkRegisterSchema(req); e != nil {
		return nil, e
	}
	return s.shard.RegisterSchema(ctx, req)
}

func checkRegisterSchema(req *pb.RegisterSchemaRequest) *api.Error {
	if e := checkSchemaName(req); e != nil {
		return e
	}
	switch n := len(req.GetDefinition()); {
	case n == 0:
		return api.Invalid("definition", "is empty")
	case n > maxDefinition:
		return api.Invalid("definition", "has %d bytes; the limit is %d", n, maxDefinition)
	}
	if n := len(req.GetMessage()); n > maxMessageName {
		return api.Invalid("message", "has %d bytes; the limit is %d", n, maxMessageName)
	}
	if req.GetMessage() != "" && req.GetFormat() != pb.SchemaFormat_SCHEMA_FORMAT_PROTOBUF {
		return api.Invalid("message", "is set; only a Protobuf schema has messages")
	}
	return checkTimeline(req.GetTimeline())
}

// schemaName is what names a schema in a request.
type schemaName interface {
	GetOrg() string
	GetType() string
	GetEventType() string
}

func checkSchemaName(r schemaName) *api.Error {
	for _, part := range []struct{ field, value string }{{"org", r.GetOrg()}, {"type", r.GetType()}} {
		if fault := partFault(part.value); fault != "" {
			return badPart(part.field, fault, part.value)
		}
	}
	return checkSchemaEventType(r.GetEventType())
}

// GetSchema implements pb.EventStoreServiceServer.
func (s *eventStore) GetSchema(ctx context.Context, req *pb.GetSchemaRequest) (*pb.GetSchemaResponse, error) {
	if e := checkSchemaName(req); e != nil {
		return nil, e
	}
	if e := checkFreshness(req); e != nil {
		return nil, e
	}
	v, err := s.shard.Read(ctx, readOptions(req, pb.Consistency_CONSISTENCY_LEADER))
	if err != nil {
		return nil, err
	}
	defer v.Release()
	if err := readsOf(ctx).reserve(ctx, maxDefinition); err != nil {
		return nil, err
	}
	major, minor := uint32(1), uint32(0)
	if version := req.GetSchema(); version != nil {
		major, minor = version.GetMajor(), version.GetMinor()
	}
	out := &pb.GetSchemaResponse{Timeline: v.Applied().Timeline}
	schema, found, err := v.Schema(req.GetOrg(), req.GetType(), req.GetEventType(), major, minor)
	if err != nil {
		return nil, err
	}
	if out.Found = found; found {
		out.Schema = replication.SchemaMessage(&schema)
	}
	return out, nil
}

// ListSchemas implements pb.EventStoreServiceServer.
func (s *eventStore) ListSchemas(ctx context.Context, req *pb.ListSchemasRequest) (*pb.ListSchemasResponse, error) {
	if e := checkListSchemas(req); e != nil {
		return nil, e
	}
	prefix := req.GetOrg() + "\x00"
	for _, part := range []string{req.GetType(), req.GetEventType()} {
		if part != "" {
			prefix += part + "\x00"
		}
	}
	list := "schemas\x00" + prefix
	after, e := parseToken(req.GetPageToken(), list)
	if e != nil {
		return nil, e
	}
	v, err := s.shard.Read(ctx, readOptions(req, pb.Consistency_CONSISTENCY_LEADER))
	if err != nil {
		return nil, err
	}
	defer v.Release()
	size := pageSize(req)
	if err := readsOf(ctx).reserve(ctx, size*schemaBytes); err != nil {
		return nil, err
	}
	out := &pb.ListSchemasResponse{Timeline: v.Applied().Timeline}
	last := ""
	for schema, err := range v.Schemas(prefix, after) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		if len(out.Schemas) == size {
			out.NextPageToken = makeToken(last, list)
			break
		}
		last = schema.Place()
		m := replication.SchemaMessage(&schema)
		m.Definition = nil
		out.Schemas = append(out.Schemas, m)
	}
	return out, nil
}

func checkListSchemas(req *pb.ListSchemasRequest) *api.Error {
	if fault := partFault(req.GetOrg()); fault != "" {
		return badPart("org", fault, req.GetOrg())
	}
	if typ := req.GetType(); typ != "" {
		if fault := partFault(typ); fault != "" {
			return badPart("type", fault, typ)
		}
	}
	if t := req.GetEventType(); t != "" {
		if req.GetType() == "" {
			return api.Invalid("event_type", "is given without type, which it needs")
		}
		if e := checkSchemaEventType(t); e != nil {
			return e
		}
	}
	if e := checkPage(req); e != nil {
		return e
	}
	return checkFreshness(req)
}

func checkSchemaEventType(t string) *api.Error {
	switch n := len(t); {
	case n == 0:
		return api.Invalid("event_type", "is empty; expected 1..%d bytes", maxEventType)
	case n > maxEventType:
		return tooLong("event_type", maxEventType, n)
	case strings.IndexByte(t, 0) >= 0:
		return api.Invalid("event_type", "has a zero byte, which the event type of a schema cannot have")
	}
	return nil
}
