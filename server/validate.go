package server

import (
	"fmt"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// Limits of a request, in bytes where not said otherwise. Those of the contract's sections
// 1 and 5 first, then those that the contract leaves to the server.
const (
	maxPart          = record.MaxPart // of a key part, and of a client_id
	maxEventType     = 200
	maxEventID       = 200
	maxSeq           = 1<<63 - 1 // client_seq
	maxEvents        = 1000      // events of a request
	maxWrites        = 100       // aggregates of a request
	maxMetadata      = 64        // metadata entries of an event
	maxMetadataBytes = 16 << 10  // keys and values of an event's metadata
	maxPage          = 1000      // entries of a page

	maxRequestID        = 200
	maxContentType      = 200
	maxEncryptionScheme = 200
	maxEncryptionKeyID  = 2048 // the longest names that key services give
	maxEncryptionNonce  = 256
	maxFilterEntries    = 1000 // of each list of a filter
	maxPageToken        = 1024
)

// timelineDigits is the length of a timeline: hexadecimal, lower case.
const timelineDigits = 32

// checkAppend checks the shape of a request (contract 2.1, step 1) in the order in which
// its fields stand, and returns the first violation or nil. It allocates only to report
// one. Strings are known to be UTF-8: the codec has refused everything else.
func checkAppend(req *pb.AppendRequest) *api.Error {
	if len(req.GetRequestId()) > maxRequestID {
		return tooLong("request_id", maxRequestID, len(req.GetRequestId()))
	}
	if e := checkClientID(req.GetClientId()); e != nil {
		return e
	}
	writes := req.GetWrites()
	switch {
	case len(writes) == 0:
		return api.Invalid("writes", "is empty; a request needs at least one write")
	case len(writes) > maxWrites:
		return tooMany("writes", maxWrites, len(writes))
	}
	dup := req.GetOnDuplicate()
	events := 0
	for i, w := range writes {
		if e := checkKeyAt(i, w.GetAggregate()); e != nil {
			return e
		}
		for j := 0; j < i; j++ {
			if sameKey(writes[j].GetAggregate(), w.GetAggregate()) {
				return api.Invalid(fmt.Sprintf("writes[%d].aggregate", i),
					"is the aggregate of writes[%d] too; a request writes an aggregate once", j)
			}
		}
		events += len(w.GetEvents())
		if events > maxEvents {
			return api.Invalid(fmt.Sprintf("writes[%d].events", i),
				"brings the request to %d events or more; the limit is %d events a request", events, maxEvents)
		}
		if e := checkWrite(i, w, dup == pb.OnDuplicate_ON_DUPLICATE_CONFIRM); e != nil {
			return e
		}
	}
	if _, known := pb.OnDuplicate_name[int32(dup)]; !known {
		return unknownEnum("on_duplicate", int32(dup))
	}
	return checkTimeline(req.GetTimeline())
}

// checkWrite checks the events and the options of write i.
func checkWrite(i int, w *pb.Write, confirm bool) *api.Error {
	events := w.GetEvents()
	if len(events) == 0 {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_EMPTY_EVENTS_LIST,
			"writes[%d].events is empty; a write needs at least one event", i)
	}
	enforce := w.GetEnforceClientIdempotency()
	var last uint64
	for j, ev := range events {
		seq := ev.GetClientSeq()
		if seq == 0 || seq > maxSeq {
			return api.Invalid(eventField(i, j, "client_seq"), "is %d; expected 1..%d", seq, uint64(maxSeq))
		}
		if enforce && seq <= last {
			return api.Errorf(pb.ErrorCode_ERROR_CODE_CLIENT_SEQ_NOT_INCREASING,
				"%s is %d after %d; with enforce_client_idempotency the sequences of a write must be strictly increasing",
				eventField(i, j, "client_seq"), seq, last)
		}
		last = seq
		if len(ev.GetEventId()) > maxEventID {
			return tooLong(eventField(i, j, "event_id"), maxEventID, len(ev.GetEventId()))
		}
		if confirm && ev.GetEventId() == "" {
			return api.Invalid(eventField(i, j, "event_id"), "is empty; ON_DUPLICATE_CONFIRM needs an event_id on every event")
		}
		if e := checkContent(i, j, ev); e != nil {
			return e
		}
	}
	if confirm && !enforce {
		return api.Invalid(fmt.Sprintf("writes[%d].enforce_client_idempotency", i), "is off; ON_DUPLICATE_CONFIRM needs it on every write")
	}
	if w.PreviousClientSeq != nil {
		field := func() string { return fmt.Sprintf("writes[%d].previous_client_seq", i) }
		if !enforce {
			return api.Invalid(field(), "is given without enforce_client_idempotency, which it needs")
		}
		if prev := w.GetPreviousClientSeq(); prev > maxSeq {
			return api.Invalid(field(), "is %d; expected 0..%d", prev, uint64(maxSeq))
		}
	}
	return nil
}

// checkContent checks what an event holds besides its sequence and id.
func checkContent(i, j int, ev *pb.NewEvent) *api.Error {
	switch n := len(ev.GetType()); {
	case n == 0:
		return api.Errorf(pb.ErrorCode_ERROR_CODE_EMPTY_EVENT_TYPE,
			"%s is empty; expected 1..%d bytes", eventField(i, j, "type"), maxEventType)
	case n > maxEventType:
		return tooLong(eventField(i, j, "type"), maxEventType, n)
	}
	if t := ev.GetOccurredAt(); t != nil && !validTime(t) {
		return badTime(eventField(i, j, "occurred_at"), t)
	}
	if n := len(ev.GetContentType()); n > maxContentType {
		return tooLong(eventField(i, j, "content_type"), maxContentType, n)
	}
	if md := ev.GetMetadata(); len(md) > 0 {
		if len(md) > maxMetadata {
			return tooMany(eventField(i, j, "metadata"), maxMetadata, len(md))
		}
		size := 0
		for k, v := range md {
			size += len(k) + len(v)
		}
		if size > maxMetadataBytes {
			return api.Invalid(eventField(i, j, "metadata"),
				"has %d bytes of keys and values; the limit is %d", size, maxMetadataBytes)
		}
	}
	if enc := ev.GetEncryption(); enc != nil {
		switch {
		case len(enc.GetScheme()) > maxEncryptionScheme:
			return tooLong(eventField(i, j, "encryption.scheme"), maxEncryptionScheme, len(enc.GetScheme()))
		case len(enc.GetKeyId()) > maxEncryptionKeyID:
			return tooLong(eventField(i, j, "encryption.key_id"), maxEncryptionKeyID, len(enc.GetKeyId()))
		case len(enc.GetNonce()) > maxEncryptionNonce:
			return tooLong(eventField(i, j, "encryption.nonce"), maxEncryptionNonce, len(enc.GetNonce()))
		}
	}
	return nil
}

// checkKeyAt checks the aggregate of write i.
func checkKeyAt(i int, k *pb.AggregateKey) *api.Error {
	if k != nil && partFault(k.Org) == "" && partFault(k.Type) == "" && partFault(k.Id) == "" {
		return nil
	}
	return checkKey(fmt.Sprintf("writes[%d].aggregate", i), k)
}

// checkKey checks an aggregate's address; field names it.
func checkKey(field string, k *pb.AggregateKey) *api.Error {
	if k == nil {
		return api.Invalid(field, "is missing")
	}
	if fault := partFault(k.Org); fault != "" {
		return badPart(field+".org", fault, k.Org)
	}
	if fault := partFault(k.Type); fault != "" {
		return badPart(field+".type", fault, k.Type)
	}
	if fault := partFault(k.Id); fault != "" {
		return badPart(field+".id", fault, k.Id)
	}
	return nil
}

// checkClientID checks the field client_id.
func checkClientID(id string) *api.Error {
	if fault := partFault(id); fault != "" {
		return badPart("client_id", fault, id)
	}
	return nil
}

func badPart(field, fault, value string) *api.Error {
	return api.Invalid(field, "%s; expected 1..%d bytes of UTF-8 without control characters or '/' (found %d bytes)",
		fault, maxPart, len(value))
}

// partFault says what is wrong with a key part or a client_id; "" if nothing is.
func partFault(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > maxPart:
		return "is too long"
	}
	return textFault(s)
}

// textFault says which byte or character may not stand in a key part.
func textFault(s string) string {
	for i := 0; i < len(s); i++ {
		switch b := s[i]; {
		case b >= utf8.RuneSelf:
			return wideFault(s[i:])
		case b == '/':
			return "has a '/'"
		case b < 0x20 || b == 0x7f:
			return "has a control character"
		}
	}
	return ""
}

// wideFault is textFault for what is not plain ASCII.
func wideFault(s string) string {
	for i, r := range s {
		switch {
		case r == utf8.RuneError:
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return "is not UTF-8"
			}
		case r == '/':
			return "has a '/'"
		case unicode.IsControl(r): // Unicode Cc: C0, DEL and C1
			return "has a control character"
		}
	}
	return ""
}

func sameKey(a, b *pb.AggregateKey) bool {
	return a.GetId() == b.GetId() && a.GetType() == b.GetType() && a.GetOrg() == b.GetOrg()
}

// checkTimeline checks the field timeline, which may be empty.
func checkTimeline(t string) *api.Error {
	if t == "" {
		return nil
	}
	ok := len(t) == timelineDigits
	for i := 0; ok && i < len(t); i++ {
		ok = t[i] >= '0' && t[i] <= '9' || t[i] >= 'a' && t[i] <= 'f'
	}
	if !ok {
		return api.Invalid("timeline", "is not a timeline; expected %d lower-case hexadecimal digits, as answers give it", timelineDigits)
	}
	return nil
}

// validTime says whether t is a time of the years 1 to 9999, which is what every
// protobuf library can hold.
func validTime(t *timestamppb.Timestamp) bool {
	const first, last = -62135596800, 253402300799
	return t.GetSeconds() >= first && t.GetSeconds() <= last && t.GetNanos() >= 0 && t.GetNanos() <= 999_999_999
}

func badTime(field string, t *timestamppb.Timestamp) *api.Error {
	return api.Invalid(field, "is %d seconds and %d nanos; expected a time of the years 1 to 9999 and 0..999999999 nanos",
		t.GetSeconds(), t.GetNanos())
}

func tooLong(field string, limit, found int) *api.Error {
	return api.Invalid(field, "has %d bytes; the limit is %d", found, limit)
}

func tooMany(field string, limit, found int) *api.Error {
	return api.Invalid(field, "has %d entries; the limit is %d", found, limit)
}

func unknownEnum(field string, value int32) *api.Error {
	return api.Invalid(field, "is %d, which this version does not know", value)
}

func eventField(i, j int, name string) string {
	return fmt.Sprintf("writes[%d].events[%d].%s", i, j, name)
}
