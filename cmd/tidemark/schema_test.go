package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// registry has the schemas of two versions of one event type, and keeps the last request.
type registry struct {
	*fakeStore
	err  error
	last proto.Message
}

func (s *registry) schema(version *pb.SchemaVersion) *pb.Schema {
	return &pb.Schema{
		Org: "acme", Type: "orders", EventType: "Placed", Schema: version, Format: pb.SchemaFormat_SCHEMA_FORMAT_JSON_SCHEMA,
		DefinitionBytes: 2, RegisteredAt: at(9), Revision: 1,
	}
}

func (s *registry) RegisterSchema(_ context.Context, req *pb.RegisterSchemaRequest) (*pb.RegisterSchemaResponse, error) {
	s.last = req
	out := s.schema(req.GetSchema())
	out.Message = req.GetMessage()
	return &pb.RegisterSchemaResponse{Schema: out, AlreadyRegistered: req.GetMessage() != ""}, s.err
}

func (s *registry) GetSchema(_ context.Context, req *pb.GetSchemaRequest) (*pb.GetSchemaResponse, error) {
	s.last = req
	if req.GetSchema().GetMajor() != 1 {
		return &pb.GetSchemaResponse{}, s.err
	}
	out := s.schema(req.GetSchema())
	out.Definition = []byte("{}")
	return &pb.GetSchemaResponse{Found: true, Schema: out}, s.err
}

func (s *registry) ListSchemas(_ context.Context, req *pb.ListSchemasRequest) (*pb.ListSchemasResponse, error) {
	s.last = req
	minor, next := uint32(0), "more"
	if req.GetPageToken() != "" {
		minor, next = 1, ""
	}
	return &pb.ListSchemasResponse{Schemas: []*pb.Schema{s.schema(&pb.SchemaVersion{Major: 1, Minor: minor})}, NextPageToken: next}, s.err
}

func TestSchema(t *testing.T) {
	s := &registry{fakeStore: &fakeStore{}}
	server := s.startAs(t, s)
	file := filepath.Join(t.TempDir(), "placed.json")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	version := &pb.SchemaVersion{Major: 1}
	register := &pb.RegisterSchemaRequest{Org: "acme", Type: "orders", EventType: "Placed", Schema: version, Format: pb.SchemaFormat_SCHEMA_FORMAT_JSON_SCHEMA, Definition: []byte("{}")}
	protobuf := proto.Clone(register).(*pb.RegisterSchemaRequest)
	protobuf.Format, protobuf.Message, protobuf.Timeline = pb.SchemaFormat_SCHEMA_FORMAT_PROTOBUF, "acme.Placed", "x"
	get := &pb.GetSchemaRequest{Org: "acme", Type: "orders", EventType: "Placed", Schema: version}
	missing := proto.Clone(get).(*pb.GetSchemaRequest)
	missing.Schema = &pb.SchemaVersion{Major: 2, Minor: 1}
	list := &pb.ListSchemasRequest{Org: "acme", Type: "orders", EventType: "Placed", PageSize: listPage, PageToken: "more"}
	const head = "aggregate type  acme/orders\nevent type      Placed\nversion         1.0\nformat          json-schema\n"
	const tail = "bytes           2\nregistered at   2026-01-31T09:00:00.000Z\n"
	for _, c := range []struct {
		args []string
		sent proto.Message
		err  error
		want output
	}{
		{[]string{"schema", "register", "acme/orders", "Placed", "1.0", file, "--format", "json-schema"}, register, nil,
			output{exitOK, "result          registered\n" + head + tail, ""}},
		{[]string{"schema", "register", "acme/orders", "Placed", "1.0", file, "--format", "protobuf", "--message", "acme.Placed", "--timeline", "x"}, protobuf, nil,
			output{exitOK, "result          registered already\n" + head + "message         acme.Placed\n" + tail, ""}},
		{[]string{"schema", "register", "acme/orders", "Placed", "1.0", file, "--format", "json-schema"}, register, api.Errorf(2020, "another one").GRPCStatus().Err(),
			output{exitFailure, "", "tidemark: 2020 RegisterSchemaAlreadyExists: another one\nRegister the changed schema under another version.\n"}},
		{[]string{"schema", "register", "acme/orders", "Placed", "1.0", file, "--format", "json-schema"}, register, api.Errorf(2014, "leadership was lost").GRPCStatus().Err(),
			output{exitUnknown, "", "tidemark: 2014 WriteOutcomeUnknown: leadership was lost\nThe registration may or may not have happened, and may still. Giving the same command again does no harm.\n"}},
		{[]string{"schema", "get", "acme/orders", "Placed", "1.0"}, get, nil, output{exitOK, "{}", ""}},
		{[]string{"schema", "get", "acme/orders", "Placed", "2.1"}, missing, nil,
			output{exitNotFound, "", "tidemark: no schema is registered for version 2.1 of \"Placed\" on acme/orders\n"}},
		{[]string{"schema", "ls", "acme/orders", "Placed"}, list, nil,
			output{exitOK, "AGGREGATE TYPE  EVENT TYPE  VERSION  FORMAT       BYTES  REGISTERED AT\n" +
				"acme/orders     Placed      1.0      json-schema  2      2026-01-31T09:00:00.000Z\n" +
				"acme/orders     Placed      1.1      json-schema  2      2026-01-31T09:00:00.000Z\n", ""}},
		{[]string{"schema", "ls", "acme", "Placed"}, nil, nil,
			output{exitUsage, "", "tidemark: expected ORG, ORG/TYPE or ORG/TYPE EVENT_TYPE; found \"acme Placed\"\nSee \"tidemark schema ls --help\".\n"}},
		{[]string{"schema", "get", "acme/orders", "Placed", "1"}, nil, nil,
			output{exitUsage, "", "tidemark: VERSION: expected MAJOR.MINOR such as 1.0, found \"1\"\nSee \"tidemark schema get --help\".\n"}},
		{[]string{"schema", "register", "acme/orders", "Placed", "1.0", file, "--format", "xml"}, nil, nil,
			output{exitUsage, "", "tidemark: --format: expected json-schema or protobuf or avro, found \"xml\"\nSee \"tidemark schema register --help\".\n"}},
	} {
		s.err, s.last = c.err, nil
		args := c.args
		if c.sent != nil {
			args = append(args, "--server", server)
		}
		check(t, c.want, args...)
		if c.sent != nil && !proto.Equal(s.last, c.sent) {
			t.Errorf("%q sent %v, want %v", args, s.last, c.sent)
		}
	}
}
