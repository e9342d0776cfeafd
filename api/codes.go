package api

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Outcome answers the question that every writer has after an error: may the write of
// this very call have landed, or still land? It says nothing about earlier calls.
type Outcome int

const (
	// NoWrite: the code belongs to calls that write nothing.
	NoWrite Outcome = iota
	// No: nothing of this call's write landed, and nothing of it will.
	No
	// Yes: the write may have landed or may still land. Keep the client_seq and ask again.
	Yes
)

// String is the word that the documentation uses.
func (o Outcome) String() string {
	switch o {
	case NoWrite:
		return "no write"
	case No:
		return "no"
	case Yes:
		return "yes"
	}
	return "Outcome(" + strconv.Itoa(int(o)) + ")"
}

// Code is one row of the table.
type Code struct {
	// Code is the number that clients match on.
	Code pb.ErrorCode
	// Name is the contract's name, as in "ClientIdempotencyViolation".
	Name string
	// GRPC is the status of every answer with this code.
	GRPC codes.Code
	// GRPCCorrupt is the status instead when the error reports damaged data; codes.OK if
	// the code never does.
	GRPCCorrupt codes.Code
	// Meaning is one sentence for the documentation.
	Meaning string
	// Advice says what the caller can do.
	Advice string
	// MayHaveHappened says whether the write of the refused call may land.
	MayHaveHappened Outcome
	// Detail is the message that comes with the code besides ErrorInfo, by its full proto
	// name; empty if none.
	Detail string
	// Planned: this version never sends the code; what it belongs to is not served yet.
	Planned bool
}

// Reason is the name in UPPER_SNAKE_CASE, as google.rpc.ErrorInfo carries it.
func (c Code) Reason() string {
	return strings.TrimPrefix(c.Code.String(), "ERROR_CODE_")
}

// Codes returns a copy of the table, in the order of the numbers.
func Codes() []Code {
	return slices.Clone(table)
}

// Lookup returns the row of a code. False means that the code is not in the table: it
// comes from a newer server, and its write must be taken as one that may have landed.
func Lookup(code pb.ErrorCode) (Code, bool) {
	i, found := index(code)
	if !found {
		return Code{Code: code, Name: "Code" + strconv.Itoa(int(code)), GRPC: codes.Unknown, MayHaveHappened: Yes}, false
	}
	return table[i], true
}

func index(code pb.ErrorCode) (int, bool) {
	return slices.BinarySearchFunc(table, code, func(c Code, code pb.ErrorCode) int {
		return int(c.Code) - int(code)
	})
}

const (
	detailAppendFailure      = "tidemark.v1.AppendFailure"
	detailVersionUnavailable = "tidemark.v1.VersionUnavailable"
	detailNotLeader          = "tidemark.v1.NotLeader"
	detailGuardFailure       = "tidemark.v1.GuardFailure"
	detailSubscriptionMoved  = "tidemark.v1.SubscriptionMoved"
	detailBadRequest         = "google.rpc.BadRequest"
	detailRetryInfo          = "google.rpc.RetryInfo"
)

// table is read only, sorted by number, and the only place where a code is described.
var table = []Code{
	{
		Code: pb.ErrorCode_ERROR_CODE_UNAVAILABLE_VERSION, Name: "UnavailableVersion", GRPC: codes.OutOfRange,
		MayHaveHappened: NoWrite, Detail: detailVersionUnavailable,
		Meaning: "The read starts below the first version that can still be read; what lay below was trimmed.",
		Advice:  "Read from the detail's `first_version`.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, Name: "AggregateNotFound", GRPC: codes.NotFound,
		MayHaveHappened: NoWrite,
		Meaning:         "The aggregate to read was never written, or it is deleted.",
		Advice:          "Check the key; GetAggregate tells a deleted aggregate from one that never existed.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_EMPTY_EVENTS_LIST, Name: "EmptyEventsList", GRPC: codes.InvalidArgument,
		MayHaveHappened: No,
		Meaning:         "A write of the request has no events.",
		Advice:          "Correct the request.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_EMPTY_EVENT_TYPE, Name: "EmptyEventType", GRPC: codes.InvalidArgument,
		MayHaveHappened: No,
		Meaning:         "An event of the request has no type.",
		Advice:          "Correct the request.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION, Name: "ClientIdempotencyViolation", GRPC: codes.AlreadyExists,
		MayHaveHappened: No, Detail: detailAppendFailure,
		Meaning: "The write's lowest `client_seq` is at or below this writer's committed mark on the aggregate: it was used already, or skipped.",
		Advice:  "Look at `holder`: with your `event_id` and every event of your write in its range, an earlier call landed; with another `event_id` yours never did; absent, the sequence was skipped.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION, Name: "OptimisticConcurrencyViolation", GRPC: codes.FailedPrecondition,
		MayHaveHappened: No, Detail: detailAppendFailure,
		Meaning: "`expected_version` is not the aggregate's version.",
		Advice:  "If `holder` is your write, an earlier call landed. If `in_flight_version` is set, nothing is decided yet: hold, then send the same again. Otherwise read the aggregate and decide again.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_EXISTS, Name: "AggregateNotExists", GRPC: codes.NotFound,
		MayHaveHappened: No, Detail: detailAppendFailure,
		Meaning: "The aggregate to write to does not exist, and `allow_create` is not set.",
		Advice:  "Set `allow_create` to create it. A `holder` says that an earlier call landed before the aggregate was deleted.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_AGGREGATE_RECREATE_NOT_ALLOWED, Name: "AggregateRecreateNotAllowed", GRPC: codes.FailedPrecondition,
		MayHaveHappened: No, Detail: detailAppendFailure,
		Meaning: "The aggregate was deleted for good.",
		Advice:  "Use another id. A `holder` says that an earlier call landed before the deletion.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_NOT_LEADER, Name: "NotLeader", GRPC: codes.Unavailable,
		MayHaveHappened: No, Detail: detailNotLeader,
		Meaning: "This node is not the leader, or can no longer prove that it is.",
		Advice:  "Send the same to the detail's `leader_address`, or to another node if it is empty.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_REPLICATION_BACKPRESSURE, Name: "ReplicationBackpressure", GRPC: codes.ResourceExhausted,
		MayHaveHappened: No, Detail: detailRetryInfo,
		Meaning: "Too many bytes are in flight.",
		Advice:  "Wait as long as `RetryInfo` says, then send the same again.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE, Name: "InflightDuplicateWrite", GRPC: codes.Aborted,
		MayHaveHappened: No, Detail: detailAppendFailure,
		Meaning: "This writer has a write with this `client_seq` or a higher one in flight on the aggregate; it may land or be rolled back.",
		Advice:  "Keep the `client_seq` and send the same again until the answer is another one. An absent `holder` says nothing here.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN, Name: "WriteOutcomeUnknown", GRPC: codes.Unknown,
		MayHaveHappened: Yes,
		Meaning:         "Leadership or the quorum was lost, or the node is stopping, while the write was waiting or in flight.",
		Advice:          "Keep the `client_seq` and send the same again, enforced: the answer then says whether it landed.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, Name: "LeaderNotReady", GRPC: codes.Unavailable,
		MayHaveHappened: No,
		Meaning:         "The node was just elected and still commits what it inherited.",
		Advice:          "Send the same again in a moment.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_INVALID_REQUEST, Name: "InvalidRequest", GRPC: codes.InvalidArgument,
		MayHaveHappened: No, Detail: detailBadRequest,
		Meaning: "A field of the request is missing, malformed, over its limit, or contradicts another.",
		Advice:  "Correct the field that the detail names.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_REQUEST_TOO_LARGE, Name: "RequestTooLarge", GRPC: codes.InvalidArgument,
		MayHaveHappened: No,
		Meaning:         "The request has more bytes than the server accepts.",
		Advice:          "Split the request, or raise the server's limit.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_INSUFFICIENT_DISK_SPACE, Name: "InsufficientDiskSpace", GRPC: codes.ResourceExhausted,
		MayHaveHappened: No,
		Meaning:         "The disk's free space is below the reserve: writes are refused, reads, trims and deletes go on.",
		Advice:          "Make room on the node's disk, then send the same again.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_CLIENT_SEQ_NOT_INCREASING, Name: "ClientSeqNotIncreasing", GRPC: codes.InvalidArgument,
		MayHaveHappened: No,
		Meaning:         "The sequences inside an enforced write are not strictly increasing.",
		Advice:          "Correct the request.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_REGISTER_SCHEMA_ALREADY_EXISTS, Name: "RegisterSchemaAlreadyExists", GRPC: codes.AlreadyExists,
		MayHaveHappened: No,
		Meaning:         "Another schema is registered under this version; registering the identical one is ok.",
		Advice:          "Register the changed schema under another version.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_REGISTER_SCHEMA_INVALID, Name: "RegisterSchemaInvalid", GRPC: codes.InvalidArgument,
		MayHaveHappened: No,
		Meaning:         "The schema's definition does not parse.",
		Advice:          "Correct the definition.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_WRITE_SCHEMA_VALIDATION_FAILED, Name: "WriteSchemaValidationFailed", GRPC: codes.InvalidArgument,
		MayHaveHappened: No, Detail: detailAppendFailure,
		Meaning: "An event's payload does not match the schema registered for its type and version.",
		Advice:  "Correct the payload, or name the schema version that it was written for.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_REGISTER_SCHEMA_UNSUPPORTED_TYPE, Name: "RegisterSchemaUnsupportedType", GRPC: codes.InvalidArgument,
		MayHaveHappened: No,
		Meaning:         "The server cannot validate this schema format.",
		Advice:          "Use a format that it can.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP, Name: "ClientSequenceGap", GRPC: codes.FailedPrecondition,
		MayHaveHappened: No, Detail: detailAppendFailure,
		Meaning: "`previous_client_seq` is not this writer's mark: a write before this one is missing.",
		Advice:  "Find out what became of the write before this one, starting from the detail's `mark`.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_TIMELINE_MISMATCH, Name: "TimelineMismatch", GRPC: codes.FailedPrecondition,
		MayHaveHappened: No,
		Meaning:         "The request names another timeline than the cluster's: its positions are from before a restore, or from another cluster.",
		Advice:          "Start again from the state of this timeline; a position of the old one means nothing here.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_TRIM_AGGREGATE_NOT_EXISTS, Name: "TrimAggregateNotExists", GRPC: codes.NotFound,
		MayHaveHappened: No,
		Meaning:         "The aggregate to trim does not exist.",
		Advice:          "Check the key.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_TRIM_INDEX_OUT_OF_RANGE, Name: "TrimIndexOutOfRange", GRPC: codes.OutOfRange,
		MayHaveHappened: No, Detail: detailVersionUnavailable,
		Meaning: "`keep_from_version` is above the aggregate's version; the newest batch always stays.",
		Advice:  "Keep from the detail's `current_version` or below.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_TRIM_OPTIMISTIC_CONCURRENCY_VIOLATION, Name: "TrimOptimisticConcurrencyViolation", GRPC: codes.FailedPrecondition,
		MayHaveHappened: No, Detail: detailGuardFailure,
		Meaning: "The trim's `expected_version` is not the aggregate's version.",
		Advice:  "Read the aggregate and decide again.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_DELETE_AGGREGATE_NOT_EXISTS, Name: "DeleteAggregateNotExists", GRPC: codes.NotFound,
		MayHaveHappened: No,
		Meaning:         "An aggregate to delete never existed.",
		Advice:          "Check the key.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_DELETE_EMPTY_DELETE_LIST, Name: "DeleteEmptyDeleteList", GRPC: codes.InvalidArgument,
		MayHaveHappened: No,
		Meaning:         "The request names no aggregate to delete.",
		Advice:          "Correct the request.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_DELETE_OPTIMISTIC_CONCURRENCY_VIOLATION, Name: "DeleteOptimisticConcurrencyViolation", GRPC: codes.FailedPrecondition,
		MayHaveHappened: No, Detail: detailGuardFailure,
		Meaning: "A delete's `expected_version` is not the aggregate's version.",
		Advice:  "Read the aggregate and decide again.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_AGGREGATE_DETAILS_NOT_FOUND, Name: "AggregateDetailsNotFound", GRPC: codes.NotFound,
		MayHaveHappened: NoWrite,
		Meaning:         "The aggregate never existed; a deleted one answers with `deleted` set.",
		Advice:          "Check the key.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_SUBSCRIBE_REQUEST_INVALID, Name: "SubscribeRequestInvalid", GRPC: codes.InvalidArgument,
		MayHaveHappened: NoWrite,
		Meaning:         "The subscription's scope, start or filter is missing, malformed or contradicts another.",
		Advice:          "Correct the request.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_LATENCY_TOO_HIGH, Name: "LatencyTooHigh", GRPC: codes.InvalidArgument,
		MayHaveHappened: NoWrite,
		Meaning:         "`max_latency` is above the server's limit.",
		Advice:          "Ask for less.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_TOO_MANY_SUBSCRIBERS, Name: "TooManySubscribers", GRPC: codes.ResourceExhausted,
		MayHaveHappened: NoWrite,
		Meaning:         "The node serves as many subscriptions as it is allowed to.",
		Advice:          "Subscribe on another node, or raise the limit.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_SUBSCRIPTION_MOVED, Name: "SubscriptionMoved", GRPC: codes.Unavailable,
		MayHaveHappened: NoWrite, Detail: detailSubscriptionMoved,
		Meaning: "The node cannot go on serving the subscription.",
		Advice:  "Subscribe again from the detail's `next_position`, at its `leader_address` if there is one.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_IDENTITY_MISMATCH, Name: "IdentityMismatch", GRPC: codes.PermissionDenied,
		MayHaveHappened: No, Planned: true,
		Meaning: "The credential may not write as this `client_id`.",
		Advice:  "Use the credential's own `client_id`.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_AUTH_REQUIRED, Name: "AuthRequired", GRPC: codes.Unauthenticated,
		MayHaveHappened: No, Planned: true,
		Meaning: "The server asks for a credential, and the call has none.",
		Advice:  "Send one.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_AUTH_INVALID_KEY, Name: "AuthInvalidKey", GRPC: codes.Unauthenticated,
		MayHaveHappened: No, Planned: true,
		Meaning: "The server does not know the credential.",
		Advice:  "Check the credential.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_AUTH_INSUFFICIENT_PERMISSIONS, Name: "AuthInsufficientPermissions", GRPC: codes.PermissionDenied,
		MayHaveHappened: No, Planned: true,
		Meaning: "The credential does not allow this call.",
		Advice:  "Use a credential that does.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_SERVER_BUSY, Name: "ServerBusy", GRPC: codes.ResourceExhausted,
		MayHaveHappened: No, Detail: detailRetryInfo,
		Meaning: "A bounded queue of the server is full, or too many calls are open.",
		Advice:  "Wait as long as `RetryInfo` says, then send the same again.",
	},
	{
		Code: pb.ErrorCode_ERROR_CODE_INTERNAL, Name: "Internal", GRPC: codes.Internal, GRPCCorrupt: codes.DataLoss,
		MayHaveHappened: Yes,
		Meaning:         "A bug, or (DATA_LOSS) damaged data: the message says which file, nothing is guessed, and the node ends with 71.",
		Advice:          "Report it with the server's log. A write's outcome is unknown: keep the `client_seq`.",
	},
}
