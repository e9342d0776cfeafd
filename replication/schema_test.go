package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/schema"
	"github.com/tidemark-db/tidemark/wal/record"
)

const (
	anyObject = `{"type":"object"}`
	anyNumber = `{"type":"number"}`
)

// schemaOf registers a JSON schema for events of type t, which appendOf sends, on acme/orders.
func schemaOf(definition string, minor uint32) *pb.RegisterSchemaRequest {
	return &pb.RegisterSchemaRequest{
		Org: "acme", Type: "orders", EventType: "t", Schema: &pb.SchemaVersion{Major: 1, Minor: minor},
		Format: pb.SchemaFormat_SCHEMA_FORMAT_JSON_SCHEMA, Definition: []byte(definition),
	}
}

// registered is what is answered to r.
func registered(r *pb.RegisterSchemaRequest, revision uint64) *pb.Schema {
	return &pb.Schema{
		Org: r.Org, Type: r.Type, EventType: r.EventType, Schema: r.Schema, Format: r.Format,
		DefinitionBytes: uint32(len(r.Definition)), Revision: revision,
	}
}

func mustRegister(t *testing.T, s *Shard, r *pb.RegisterSchemaRequest) *pb.RegisterSchemaResponse {
	t.Helper()
	resp, err := s.RegisterSchema(context.Background(), r)
	if err != nil {
		t.Fatalf("register: %v", err)
	}
	return resp
}

// payload sets the payload of every event, and its schema's minor version.
func payload(text string, minor uint32) mod {
	return func(r *pb.AppendRequest) {
		for _, w := range r.Writes {
			for _, e := range w.Events {
				e.Payload, e.Schema = []byte(text), &pb.SchemaVersion{Major: 1, Minor: minor}
			}
		}
	}
}

// stored are the schemas that a shard has published.
func stored(t *testing.T, s *Shard) []*pb.Schema {
	t.Helper()
	v := s.currentView()
	defer v.Release()
	var out []*pb.Schema
	for schema, err := range v.Schemas("", "") {
		if err != nil {
			t.Fatal(err)
		}
		m := SchemaMessage(&schema)
		m.RegisteredAt = nil
		out = append(out, m)
	}
	return out
}

func TestRegisterSchema(t *testing.T) {
	dir := t.TempDir()
	s := openShard(t, Options{Dir: dir})
	timeline := s.identity().Timeline
	r := schemaOf(anyObject, 0)
	check := func(got *pb.RegisterSchemaResponse, want *pb.Schema, already bool) {
		t.Helper()
		if got.GetSchema().GetRegisteredAt().GetSeconds() == 0 {
			t.Errorf("registered at %v", got.GetSchema().GetRegisteredAt())
		}
		got.Schema.RegisteredAt = nil
		if full := (&pb.RegisterSchemaResponse{Schema: want, AlreadyRegistered: already, Timeline: timeline}); !proto.Equal(got, full) {
			t.Errorf("\n got %v\nwant %v", got, full)
		}
	}
	first := mustRegister(t, s, r)
	at := first.Schema.RegisteredAt
	check(first, registered(r, 1), false)
	again := mustRegister(t, s, r)
	if !proto.Equal(again.Schema.RegisteredAt, at) {
		t.Errorf("the same again is of %v, was registered at %v", again.Schema.RegisteredAt, at)
	}
	check(again, registered(r, 1), true)

	other := schemaOf(anyNumber, 0)
	_, err := s.RegisterSchema(context.Background(), other)
	want := `2020 RegisterSchemaAlreadyExists: version 1.0 of "t" on acme/orders: expected the schema that is registered (json_schema, 17 bytes, BLAKE3 `
	if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "), found json_schema, 17 bytes, BLAKE3 ") {
		t.Errorf("a different one: %v, want %s...", err, want)
	}
	// Another version, another event type and another aggregate type have schemas of their own.
	second := schemaOf(anyNumber, 1)
	check(mustRegister(t, s, second), registered(second, 2), false)
	elsewhere := schemaOf(anyNumber, 0)
	elsewhere.Type = "order"
	check(mustRegister(t, s, elsewhere), registered(elsewhere, 1), false)

	for code, bad := range map[pb.ErrorCode]func(*pb.RegisterSchemaRequest){
		2021: func(r *pb.RegisterSchemaRequest) { r.Definition = []byte(`{"type":"nothing"}`) },
		2024: func(r *pb.RegisterSchemaRequest) { r.Format = 7 },
		2031: func(r *pb.RegisterSchemaRequest) { r.Timeline = "ffffffffffffffffffffffffffffffff" },
	} {
		r := schemaOf(anyObject, 5)
		bad(r)
		var e *api.Error
		if _, err := s.RegisterSchema(context.Background(), r); !errors.As(err, &e) || e.Code != code {
			t.Errorf("%v, want %d", err, code)
		}
	}
	all := []*pb.Schema{registered(elsewhere, 1), registered(r, 1), registered(second, 2)}
	for i, r := range []*pb.RegisterSchemaRequest{elsewhere, r, second} {
		all[i].Definition = r.Definition
	}
	same := func(when string, got []*pb.Schema) {
		t.Helper()
		if len(got) != len(all) {
			t.Fatalf("%s: %v", when, got)
		}
		for i := range all {
			if !proto.Equal(got[i], all[i]) {
				t.Errorf("%s:\n got %v\nwant %v", when, got[i], all[i])
			}
		}
	}
	same("registered", stored(t, s))
	if err := s.Abandon(); err != nil { // the log alone has them
		t.Fatal(err)
	}
	s = openShard(t, Options{Dir: dir})
	same("after a crash", stored(t, s))
	check(mustRegister(t, s, r), registered(r, 1), true)
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	s = openShard(t, Options{Dir: dir})
	defer func() { _ = s.Abandon() }()
	third := schemaOf(anyNumber, 2)
	check(mustRegister(t, s, third), registered(third, 3), false) // the history counts on
}

func violated(index uint32, minor uint32, path, rule string) *pb.SchemaViolation {
	return &pb.SchemaViolation{EventIndex: index, EventType: "t", Schema: &pb.SchemaVersion{Major: 1, Minor: minor}, Path: path, Rule: rule}
}

func TestWritesMatchTheirSchemas(t *testing.T) {
	s := openShard(t, Options{Dir: t.TempDir()})
	defer func() { _ = s.Abandon() }()
	mustAppend(t, s, appendOf("a", "1", seqs(1), payload("no JSON", 0))) // before there is any
	mustRegister(t, s, schemaOf(`{"properties":{"n":{"maximum":3}}}`, 0))

	mustAppend(t, s, appendOf("a", "1", seqs(2), payload(`{"n":3}`, 0), expect(1)))
	mustAppend(t, s, appendOf("a", "1", seqs(3), payload("no JSON", 1))) // no schema of that version
	mustAppend(t, s, appendOf("a", "1", seqs(4), payload("no JSON", 0), func(r *pb.AppendRequest) {
		r.Writes[0].Events[0].Encryption = &pb.Encryption{Scheme: "x"}
	}))
	mustAppend(t, s, appendOf("a", "1", seqs(5), payload("no JSON", 0), func(r *pb.AppendRequest) { r.Writes[0].Aggregate.Type = "other" }))

	// Two writes; the second event of the second one is wrong, whatever its content_type says.
	r := appendOf("a", "1", seqs(6), payload(`{}`, 0))
	r.Writes = append(r.Writes, appendOf("a", "2", seqs(1, 2), payload(`{}`, 0)).Writes...)
	r.Writes[1].Events[1].Payload, r.Writes[1].Events[1].ContentType = []byte(`{"n":4}`), "text/plain"
	wantFailure(t, s, r, &pb.AppendFailure{
		Code: 2022, WriteIndex: 1, Aggregate: key("2"), AttemptedSeq: 1, Violation: violated(1, 0, "/n", "/properties/n/maximum"),
	})
	_, err := s.Append(context.Background(), r)
	want := `2022 WriteSchemaValidationFailed: write 1, acme/orders/2: event 1 does not match the schema of "t" 1.0: at /n, rule /properties/n/maximum: maximum: got 4, want 3`
	if err == nil || err.Error() != want {
		t.Errorf("\n got %v\nwant %s", err, want)
	}
	r.Writes[1].Events[1].Payload = []byte(`{"n":2}`)
	if got := mustAppend(t, s, r); got.Results[0].Version != 5 || got.Results[1].Version != 1 {
		t.Errorf("corrected: %v", got)
	}
	if all := s.Stats(); all.Schemas != 1 || all.MaxSchemas != 100_000 || all.Validators != s.validators.Stats() {
		t.Errorf("%d of %d schemas, %+v", all.Schemas, all.MaxSchemas, all.Validators)
	}
	// Of encrypted events and those of an unregistered version, nothing is counted as valid.
	st := s.validators.Stats()
	if st != (ValidatorStats{Entries: 1, MaxEntries: 1000, Bytes: 34, MaxBytes: 16 << 20, Hits: 9, Misses: 1, Valid: 8, Invalid: 2, Unregistered: 1, Encrypted: 1}) {
		t.Errorf("%+v", st)
	}
}

func TestValidatorsAreBounded(t *testing.T) {
	v := newValidators()
	v.stats.MaxEntries, v.stats.MaxBytes = 3, 10
	x := &schema.Validator{}
	for _, place := range []string{"a", "b", "a", "c"} {
		v.put(place, 3, x)
	}
	v.get("a")
	v.put("d", 3, x) // too many: b, used least recently, goes
	v.put("e", 8, x) // too many bytes: all others go
	if v.get("b") != nil || v.get("a") != nil || v.get("e") != x {
		t.Error("expected the newest alone to be kept")
	}
	if got, want := v.Stats(), (ValidatorStats{Entries: 1, MaxEntries: 3, Bytes: 8, MaxBytes: 10, Hits: 2, Misses: 6, Evictions: 4}); got != want {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
}

// Schemas are checked last but for room (contract 2.1): what landed is told so under a schema
// that was tightened since.
func TestSchemasAreCheckedBehindTheOthers(t *testing.T) {
	s := openShard(t, Options{Dir: t.TempDir()})
	defer func() { _ = s.Abandon() }()
	landed := appendOf("a", "1", seqs(7), payload(`"text"`, 0), expect(0))
	original := mustAppend(t, s, landed).Results[0]
	mustRegister(t, s, schemaOf(anyNumber, 0))
	holder := &pb.Holder{Version: 1, Incarnation: 1, Position: 1, ClientSeq: 7, EventId: "a-7", FirstClientSeq: 7, LastClientSeq: 7, EventCount: 1}
	text := payload(`"text"`, 0)
	for name, c := range map[string]struct {
		r    *pb.AppendRequest
		want *pb.AppendFailure
	}{
		"existence": {appendOf("a", "2", seqs(8), text, func(r *pb.AppendRequest) { r.Writes[0].AllowCreate = false }),
			&pb.AppendFailure{Code: 2005, Aggregate: key("2"), AttemptedSeq: 8}},
		"guard": {landed, &pb.AppendFailure{Code: 2003, Aggregate: key("1"), ExpectedVersion: proto.Uint64(0), CurrentVersion: 1, AttemptedSeq: 7, Mark: 7, Holder: holder}},
		"idempotency": {appendOf("a", "1", seqs(7), text),
			&pb.AppendFailure{Code: 2002, Aggregate: key("1"), CurrentVersion: 1, AttemptedSeq: 7, Mark: 7, Holder: holder}},
		"schema": {appendOf("a", "1", seqs(8), text, expect(1)),
			&pb.AppendFailure{Code: 2022, Aggregate: key("1"), ExpectedVersion: proto.Uint64(1), CurrentVersion: 1, AttemptedSeq: 8, Mark: 7, Violation: violated(0, 0, "", "/type")}},
	} {
		t.Run(name, func(t *testing.T) { wantFailure(t, s, c.r, c.want) })
	}
	confirm := proto.Clone(landed).(*pb.AppendRequest)
	confirmRequest(confirm)
	want := proto.Clone(original).(*pb.WriteResult)
	want.AlreadyCommitted = true
	if got := mustAppend(t, s, confirm).Results[0]; !proto.Equal(got, want) {
		t.Errorf("confirmed: %v, want %v", got, want)
	}
}

// A 2022 is definite: a client drops the event for it.
func TestAViolationWaitsForAMajority(t *testing.T) {
	r := &refusal{failure: &pb.AppendFailure{Code: 2022}}
	if !r.definite() || r.confirmable() {
		t.Errorf("definite %v, confirmable %v; want true, false", r.definite(), r.confirmable())
	}
}

// goRegister registers on its own.
func goRegister(t *testing.T, s *Shard, r *pb.RegisterSchemaRequest) *call {
	t.Helper()
	before := s.Status().InFlightRequests
	c := &call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		_, c.err = s.RegisterSchema(context.Background(), r)
	}()
	await(t, "the registration is in flight", func() bool { return s.Status().InFlightRequests > before })
	return c
}

// A write waits for the registrations in flight for its types (contract 2.2), and is judged by
// what they have come to.
func TestWriteWaitsForARegistrationInFlight(t *testing.T) {
	g := newGate()
	s := openShard(t, Options{Dir: t.TempDir(), Hooks: g.hooks()})
	defer func() { _ = s.Abandon() }()
	g.shut()
	ahead := start(t, s, appendOf("a", "0", seqs(1), payload(`"text"`, 0))) // admitted before it
	one := goRegister(t, s, schemaOf(anyNumber, 0))
	two := goRegister(t, s, schemaOf(anyObject, 0)) // will be refused
	waits(t, s, appendOf("a", "1", seqs(1), payload(`"text"`, 0)))
	other := appendOf("a", "1", seqs(1), payload(`"text"`, 0))
	other.Writes[0].Aggregate.Type = "other"
	elsewhere := start(t, s, other) // another type: admitted
	wrong := goAppend(context.Background(), s, appendOf("a", "1", seqs(1), payload(`"text"`, 0)))
	right := goAppend(context.Background(), s, appendOf("a", "2", seqs(1), payload(`1`, 0)))
	g.lift()
	for _, c := range []*call{ahead, one, elsewhere, right} {
		if _, err := c.wait(t); err != nil {
			t.Error(err)
		}
	}
	var e *api.Error
	if _, err := two.wait(t); !errors.As(err, &e) || e.Code != 2020 {
		t.Errorf("the second registration: %v, want 2020", err)
	}
	if _, err := wrong.wait(t); !errors.As(err, &e) || e.Code != 2022 {
		t.Errorf("what does not match: %v, want 2022", err)
	}
}

// A registration that raft gave back is over: who waits is judged without it.
func TestWriteBehindARegistrationThatDidNotHappen(t *testing.T) {
	g := newGate()
	s := openShard(t, Options{Dir: t.TempDir(), Hooks: g.hooks()})
	defer func() { _ = s.Abandon() }()
	g.shut()
	registration := goRegister(t, s, schemaOf(anyNumber, 0))
	behind := goAppend(context.Background(), s, appendOf("a", "1", seqs(1), payload(`"text"`, 0)))
	g.lift(raft.ErrNotLeader)
	var e *api.Error
	if _, err := registration.wait(t); !errors.As(err, &e) || e.Code != 2011 {
		t.Errorf("the registration: %v, want 2011", err)
	}
	if resp, err := behind.wait(t); err != nil || resp.Results[0].Version != 1 {
		t.Errorf("behind it: %v, %v", resp, err)
	}
}

// Another revision in Apply than the entry says is a bug: the write is refused, the same way on
// every node.
func TestEntryValidatedAgainstOtherSchemas(t *testing.T) {
	a := newApplier(t)
	a.proc.schemas.revisions["acme\x00orders\x00"] = 2
	entry := func(id string, revision uint64) []byte {
		w := record.Write{Key: record.MakeKey("acme", "orders", id), Flags: record.FlagAllowCreate, SchemaRevision: revision}
		if revision > 0 {
			w.Flags |= record.FlagHasSchema
		}
		b := record.AppendRequestHeader(nil, 0, "a", 1)
		b, _ = record.EncodeWrite(b, &w, []*pb.NewEvent{{ClientSeq: 1, Type: "t"}})
		record.FinishRequest(b, 0)
		return b
	}
	for revision, want := range []string{
		"11001 Internal: bug: write 0, acme/orders/0: validated against revision 0 of its type's schemas, found revision 2 where it was applied: nothing was written",
		"11001 Internal: bug: write 0, acme/orders/1: validated against revision 1 of its type's schemas, found revision 2 where it was applied: nothing was written",
		"",
		"11001 Internal: bug: write 0, acme/orders/3: validated against revision 3 of its type's schemas, found revision 2 where it was applied: nothing was written",
	} {
		digest := a.proc.applied.Digest
		o := a.step(entry(fmt.Sprint(revision), uint64(revision)))[0]
		got := ""
		if o.failure != nil {
			got = o.failure.Error()
		}
		if got != want || (o.kind == committed) != (want == "") || a.proc.applied.Digest == digest {
			t.Errorf("revision %d: %q, want %q", revision, got, want)
		}
	}
}

// The registration survives failover, a retry of it on the new leader is told so, and of two
// different ones at once exactly one wins.
func TestSchemasOnThreeNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	ctx := context.Background()
	c.leader()
	results := make(chan error, 2)
	for _, definition := range []string{anyObject, anyNumber} {
		go func() { // ends with its call
			_, err := c.leader().RegisterSchema(ctx, schemaOf(definition, 0))
			results <- err
		}()
	}
	won := 0
	for range 2 {
		var e *api.Error
		if err := <-results; err == nil {
			won++
		} else if !errors.As(err, &e) || e.Code != 2020 {
			t.Errorf("%v, want 2020", err)
		}
	}
	if won != 1 {
		t.Fatalf("%d of two different schemas were registered", won)
	}
	c.converged()
	before := stored(t, c.leader().Shard)
	if len(before) != 1 {
		t.Fatalf("%v", before)
	}
	winner := schemaOf(string(before[0].Definition), 0)
	var e *api.Error
	for _, id := range c.followers() {
		if got := stored(t, c.nodes[id].Shard); len(got) != 1 || !proto.Equal(got[0], before[0]) {
			t.Errorf("%s has %v, the leader %v", id, got, before)
		}
		if _, err := c.nodes[id].RegisterSchema(ctx, winner); !errors.As(err, &e) || e.Code != 2011 {
			t.Errorf("on a follower: %v, want 2011", err)
		}
	}
	first := c.leader()
	for id, n := range c.nodes {
		if n == first {
			c.kill(id)
			break
		}
	}
	again := mustRegister(t, c.leader().Shard, winner)
	if !again.AlreadyRegistered || again.Schema.Revision != 1 {
		t.Errorf("a retry after failover: %v", again)
	}
	if _, err := c.leader().Append(ctx, appendOf("a", "1", seqs(1), payload(`"text"`, 0))); !errors.As(err, &e) || e.Code != 2022 {
		t.Errorf("on the new leader: %v, want 2022", err)
	}
}
