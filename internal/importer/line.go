package importer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// AppendLine appends the export line of event i of a batch, with its line break. Keys come
// in this order; 64-bit integers are strings, as in protojson:
//
//	aggregate      "org/type/id"
//	version        the batch's, "3"; lines of one batch have the same
//	event_index    of the event in its batch, from 0
//	event_count    of the batch
//	client_id
//	client_seq     "17"
//	event_id       left out if empty
//	type
//	schema         {"major":1,"minor":0}
//	occurred_at    RFC 3339 in UTC; left out if the event has none
//	content_type   left out if empty
//	metadata       {"key":"value"} in byte order of the keys; left out if empty
//	encryption     {"scheme":"","key_id":"","nonce":base64}; left out if there is none
//	payload        the payload itself, if it is JSON and can be cut out again unchanged,
//	payload_base64 else this
func AppendLine(dst []byte, b *pb.Batch, i int) []byte {
	e := b.GetEvents()[i]
	dst = append(dst, `{"aggregate":`...)
	k := b.GetAggregate()
	dst = appendString(dst, k.GetOrg()+"/"+k.GetType()+"/"+k.GetId())
	dst = appendNumber(dst, `,"version":"`, b.GetVersion())
	dst = appendNumber(dst, `","event_index":`, uint64(i))
	dst = appendNumber(dst, `,"event_count":`, uint64(len(b.GetEvents())))
	dst = append(dst, `,"client_id":`...)
	dst = appendString(dst, b.GetClientId())
	dst = appendNumber(dst, `,"client_seq":"`, e.GetClientSeq())
	dst = append(dst, '"')
	dst = appendOptional(dst, `,"event_id":`, e.GetEventId())
	dst = append(dst, `,"type":`...)
	dst = appendString(dst, e.GetType())
	major, minor := uint32(1), uint32(0)
	if s := e.GetSchema(); s != nil {
		major, minor = s.GetMajor(), s.GetMinor()
	}
	dst = appendNumber(dst, `,"schema":{"major":`, uint64(major))
	dst = appendNumber(dst, `,"minor":`, uint64(minor))
	dst = append(dst, '}')
	if t := e.GetOccurredAt(); t != nil {
		dst = append(dst, `,"occurred_at":"`...)
		dst = t.AsTime().AppendFormat(dst, time.RFC3339Nano)
		dst = append(dst, '"')
	}
	dst = appendOptional(dst, `,"content_type":`, e.GetContentType())
	dst = appendMetadata(dst, e.GetMetadata())
	if enc := e.GetEncryption(); enc != nil {
		dst = append(dst, `,"encryption":{"scheme":`...)
		dst = appendString(dst, enc.GetScheme())
		dst = append(dst, `,"key_id":`...)
		dst = appendString(dst, enc.GetKeyId())
		dst = append(dst, `,"nonce":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, enc.GetNonce())
		dst = append(dst, `"}`...)
	}
	if embeddable(e.GetContentType(), e.GetPayload()) {
		dst = append(dst, `,"payload":`...)
		dst = append(dst, e.GetPayload()...)
		return append(dst, "}\n"...)
	}
	dst = append(dst, `,"payload_base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, e.GetPayload())
	return append(dst, "\"}\n"...)
}

func appendNumber(dst []byte, before string, n uint64) []byte {
	return strconv.AppendUint(append(dst, before...), n, 10)
}

func appendOptional(dst []byte, before, s string) []byte {
	if s == "" {
		return dst
	}
	return appendString(append(dst, before...), s)
}

func appendMetadata(dst []byte, metadata map[string]string) []byte {
	if len(metadata) == 0 {
		return dst
	}
	dst = append(dst, `,"metadata":{`...)
	for i, key := range slices.Sorted(maps.Keys(metadata)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, key)
		dst = append(dst, ':')
		dst = appendString(dst, metadata[key])
	}
	return append(dst, '}')
}

// exportLine is an export line as read back.
type exportLine struct {
	Aggregate  string `json:"aggregate"`
	Version    uint64 `json:"version,string"`
	EventIndex uint32 `json:"event_index"`
	EventCount uint32 `json:"event_count"`
	ClientID   string `json:"client_id"`
	ClientSeq  uint64 `json:"client_seq,string"`
	EventID    string `json:"event_id"`
	Type       string `json:"type"`
	Schema     *struct {
		Major uint32 `json:"major"`
		Minor uint32 `json:"minor"`
	} `json:"schema"`
	OccurredAt  *time.Time        `json:"occurred_at"`
	ContentType string            `json:"content_type"`
	Metadata    map[string]string `json:"metadata"`
	Encryption  *struct {
		Scheme string `json:"scheme"`
		KeyID  string `json:"key_id"`
		Nonce  []byte `json:"nonce"`
	} `json:"encryption"`
	Payload       json.RawMessage `json:"payload"`
	PayloadBase64 *[]byte         `json:"payload_base64"`
}

// parseLine reads one export line. The result does not alias text.
func parseLine(text []byte) (*exportLine, *pb.AggregateKey, error) {
	l := &exportLine{}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	err := dec.Decode(l)
	if err == nil {
		_, err = dec.Token()
		if errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = errors.New("something follows the object")
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("not a line of an export: %w; to import other objects, name their columns with --id-column and --event-type-column", err)
	}
	org, rest, _ := strings.Cut(l.Aggregate, "/")
	typ, id, _ := strings.Cut(rest, "/")
	for _, part := range []string{org, typ, id} {
		if err := checkName(part); err != nil {
			return nil, nil, fmt.Errorf("aggregate %q: expected org/type/id: %w", clip(l.Aggregate), err)
		}
	}
	switch {
	case l.Version == 0:
		return nil, nil, errors.New("version is missing; it tells batches apart")
	case l.EventIndex >= l.EventCount:
		return nil, nil, fmt.Errorf("event_index %d is not below event_count %d", l.EventIndex, l.EventCount)
	case l.Payload != nil && l.PayloadBase64 != nil:
		return nil, nil, errors.New("expected payload or payload_base64, found both")
	}
	return l, &pb.AggregateKey{Org: org, Type: typ, Id: id}, nil
}

// event is the event of a line.
func (l *exportLine) event() *pb.NewEvent {
	e := &pb.NewEvent{
		ClientSeq: l.ClientSeq, EventId: l.EventID, Type: l.Type,
		ContentType: l.ContentType, Metadata: l.Metadata, Payload: l.Payload,
	}
	if l.Schema != nil {
		e.Schema = &pb.SchemaVersion{Major: l.Schema.Major, Minor: l.Schema.Minor}
	}
	if l.OccurredAt != nil {
		e.OccurredAt = timestamppb.New(*l.OccurredAt)
	}
	if l.Encryption != nil {
		e.Encryption = &pb.Encryption{Scheme: l.Encryption.Scheme, KeyId: l.Encryption.KeyID, Nonce: l.Encryption.Nonce}
	}
	if l.PayloadBase64 != nil {
		e.Payload = *l.PayloadBase64
	}
	return e
}
