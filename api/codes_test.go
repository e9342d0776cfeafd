package api

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// row is what the contract, section 4, says of a code, and section 3 of its outcome.
type row struct {
	number  int32
	name    string
	reason  string
	status  codes.Code
	corrupt codes.Code
	outcome Outcome
	detail  string
}

// contractRows repeats the code table on purpose: the table in codes.go must not be able to
// change without somebody deciding that the contract changes.
var contractRows = []row{
	{1000, "UnavailableVersion", "UNAVAILABLE_VERSION", codes.OutOfRange, 0, NoWrite, "tidemark.v1.VersionUnavailable"},
	{1001, "AggregateNotFound", "AGGREGATE_NOT_FOUND", codes.NotFound, 0, NoWrite, ""},
	{2000, "EmptyEventsList", "EMPTY_EVENTS_LIST", codes.InvalidArgument, 0, No, ""},
	{2001, "EmptyEventType", "EMPTY_EVENT_TYPE", codes.InvalidArgument, 0, No, ""},
	{2002, "ClientIdempotencyViolation", "CLIENT_IDEMPOTENCY_VIOLATION", codes.AlreadyExists, 0, No, "tidemark.v1.AppendFailure"},
	{2003, "OptimisticConcurrencyViolation", "OPTIMISTIC_CONCURRENCY_VIOLATION", codes.FailedPrecondition, 0, No, "tidemark.v1.AppendFailure"},
	{2005, "AggregateNotExists", "AGGREGATE_NOT_EXISTS", codes.NotFound, 0, No, "tidemark.v1.AppendFailure"},
	{2006, "AggregateRecreateNotAllowed", "AGGREGATE_RECREATE_NOT_ALLOWED", codes.FailedPrecondition, 0, No, "tidemark.v1.AppendFailure"},
	{2011, "NotLeader", "NOT_LEADER", codes.Unavailable, 0, No, "tidemark.v1.NotLeader"},
	{2012, "ReplicationBackpressure", "REPLICATION_BACKPRESSURE", codes.ResourceExhausted, 0, No, "google.rpc.RetryInfo"},
	{2013, "InflightDuplicateWrite", "INFLIGHT_DUPLICATE_WRITE", codes.Aborted, 0, No, "tidemark.v1.AppendFailure"},
	{2014, "WriteOutcomeUnknown", "WRITE_OUTCOME_UNKNOWN", codes.Unknown, 0, Yes, ""},
	{2015, "LeaderNotReady", "LEADER_NOT_READY", codes.Unavailable, 0, No, ""},
	{2016, "InvalidRequest", "INVALID_REQUEST", codes.InvalidArgument, 0, No, "google.rpc.BadRequest"},
	{2017, "RequestTooLarge", "REQUEST_TOO_LARGE", codes.InvalidArgument, 0, No, ""},
	{2018, "InsufficientDiskSpace", "INSUFFICIENT_DISK_SPACE", codes.ResourceExhausted, 0, No, ""},
	{2019, "ClientSeqNotIncreasing", "CLIENT_SEQ_NOT_INCREASING", codes.InvalidArgument, 0, No, ""},
	{2020, "RegisterSchemaAlreadyExists", "REGISTER_SCHEMA_ALREADY_EXISTS", codes.AlreadyExists, 0, No, ""},
	{2021, "RegisterSchemaInvalid", "REGISTER_SCHEMA_INVALID", codes.InvalidArgument, 0, No, ""},
	{2022, "WriteSchemaValidationFailed", "WRITE_SCHEMA_VALIDATION_FAILED", codes.InvalidArgument, 0, No, "tidemark.v1.AppendFailure"},
	{2024, "RegisterSchemaUnsupportedType", "REGISTER_SCHEMA_UNSUPPORTED_TYPE", codes.InvalidArgument, 0, No, ""},
	{2030, "ClientSequenceGap", "CLIENT_SEQUENCE_GAP", codes.FailedPrecondition, 0, No, "tidemark.v1.AppendFailure"},
	{2031, "TimelineMismatch", "TIMELINE_MISMATCH", codes.FailedPrecondition, 0, No, ""},
	{3000, "TrimAggregateNotExists", "TRIM_AGGREGATE_NOT_EXISTS", codes.NotFound, 0, No, ""},
	{3004, "TrimIndexOutOfRange", "TRIM_INDEX_OUT_OF_RANGE", codes.OutOfRange, 0, No, "tidemark.v1.VersionUnavailable"},
	{3005, "TrimOptimisticConcurrencyViolation", "TRIM_OPTIMISTIC_CONCURRENCY_VIOLATION", codes.FailedPrecondition, 0, No, "tidemark.v1.GuardFailure"},
	{4000, "DeleteAggregateNotExists", "DELETE_AGGREGATE_NOT_EXISTS", codes.NotFound, 0, No, ""},
	{4001, "DeleteEmptyDeleteList", "DELETE_EMPTY_DELETE_LIST", codes.InvalidArgument, 0, No, ""},
	{4002, "DeleteOptimisticConcurrencyViolation", "DELETE_OPTIMISTIC_CONCURRENCY_VIOLATION", codes.FailedPrecondition, 0, No, "tidemark.v1.GuardFailure"},
	{7001, "AggregateDetailsNotFound", "AGGREGATE_DETAILS_NOT_FOUND", codes.NotFound, 0, NoWrite, ""},
	{8000, "SubscribeRequestInvalid", "SUBSCRIBE_REQUEST_INVALID", codes.InvalidArgument, 0, NoWrite, ""},
	{8001, "LatencyTooHigh", "LATENCY_TOO_HIGH", codes.InvalidArgument, 0, NoWrite, ""},
	{8005, "TooManySubscribers", "TOO_MANY_SUBSCRIBERS", codes.ResourceExhausted, 0, NoWrite, ""},
	{8006, "SubscriptionMoved", "SUBSCRIPTION_MOVED", codes.Unavailable, 0, NoWrite, "tidemark.v1.SubscriptionMoved"},
	{10003, "IdentityMismatch", "IDENTITY_MISMATCH", codes.PermissionDenied, 0, No, ""},
	{10005, "AuthRequired", "AUTH_REQUIRED", codes.Unauthenticated, 0, No, ""},
	{10006, "AuthInvalidKey", "AUTH_INVALID_KEY", codes.Unauthenticated, 0, No, ""},
	{10007, "AuthInsufficientPermissions", "AUTH_INSUFFICIENT_PERMISSIONS", codes.PermissionDenied, 0, No, ""},
	{11000, "ServerBusy", "SERVER_BUSY", codes.ResourceExhausted, 0, No, "google.rpc.RetryInfo"},
	{11001, "Internal", "INTERNAL", codes.Internal, codes.DataLoss, Yes, ""},
}

func rowOf(c Code) row {
	return row{int32(c.Code), c.Name, c.Reason(), c.GRPC, c.GRPCCorrupt, c.MayHaveHappened, c.Detail}
}

// TestContractCodeTable covers docs/contract.md, section 4 "Codes", row by row.
func TestContractCodeTable(t *testing.T) {
	var got []row
	for _, c := range Codes() {
		got = append(got, rowOf(c))
	}
	for i := range max(len(got), len(contractRows)) {
		switch {
		case i >= len(got):
			t.Errorf("row %d: missing %+v", i, contractRows[i])
		case i >= len(contractRows):
			t.Errorf("row %d: not in the contract: %+v", i, got[i])
		case got[i] != contractRows[i]:
			t.Errorf("row %d:\n got %+v\nwant %+v", i, got[i], contractRows[i])
		}
	}
	for _, c := range Codes() {
		if c.Meaning == "" || c.Advice == "" {
			t.Errorf("%d %s: the documentation needs a meaning and an advice", c.Code, c.Name)
		}
	}
}

func TestEveryEnumValueIsInTheTable(t *testing.T) {
	var inProto, inTable []int32
	for n := range pb.ErrorCode_name {
		if n != 0 {
			inProto = append(inProto, n)
		}
	}
	slices.Sort(inProto)
	for _, c := range Codes() {
		inTable = append(inTable, int32(c.Code))
	}
	if !slices.Equal(inProto, inTable) {
		t.Errorf("numbers in the proto enum and in the table differ:\nproto %v\ntable %v", inProto, inTable)
	}
}

// What this version serves must be able to send its details: their types are generated.
func TestServedDetailsExist(t *testing.T) {
	for _, c := range Codes() {
		if c.Detail == "" || c.Planned {
			continue
		}
		if _, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(c.Detail)); err != nil {
			t.Errorf("%d %s: detail %s: %v", c.Code, c.Name, c.Detail, err)
		}
	}
}

// Section 4: "No status that the server sends for an ambiguous write is UNAVAILABLE";
// RESOURCE_EXHAUSTED and ABORTED are retried by some libraries too.
func TestAmbiguousCodesAreNotRetriedByLibraries(t *testing.T) {
	for _, c := range Codes() {
		if c.MayHaveHappened != Yes {
			continue
		}
		switch c.GRPC {
		case codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
			t.Errorf("%d %s may have landed, and %v makes libraries resend it", c.Code, c.Name, c.GRPC)
		}
	}
}

func TestLookup(t *testing.T) {
	for _, want := range contractRows {
		c, ok := Lookup(pb.ErrorCode(want.number))
		if !ok || rowOf(c) != want {
			t.Errorf("Lookup(%d) = %+v, %v; want %+v", want.number, rowOf(c), ok, want)
		}
	}
	c, ok := Lookup(9999)
	if want := (Code{Code: 9999, Name: "Code9999", GRPC: codes.Unknown, MayHaveHappened: Yes}); ok || c != want {
		t.Errorf("Lookup(9999) = %+v, %v; want %+v, false", c, ok, want)
	}
}

func TestCodesReturnsACopy(t *testing.T) {
	Codes()[0].Name = "changed"
	if got := Codes()[0].Name; got != "UnavailableVersion" {
		t.Errorf("a caller changed the table: %q", got)
	}
}
