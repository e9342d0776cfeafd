package server

import (
	"strconv"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
)

// messageFactor is how many of the largest requests an AppendStreamRequest may be as large as.
const messageFactor = 4

// arrivals is an AppendStreamRequest on its way from bytes to requests. Each of its appends is
// bounded, decoded and checked on its own, so that what is wrong with one is that one's answer.
type arrivals struct {
	chain    *chain
	requests []*replication.StreamRequest
	// err is why the message is of no use from behind requests on, or nil.
	err *api.Error
}

// decode fills in a.requests, and a.err.
func (a *arrivals) decode(data mem.BufferSlice) {
	if size, limit := data.Len(), messageFactor*a.chain.maxRequest; size > limit {
		a.err = api.Errorf(pb.ErrorCode_ERROR_CODE_REQUEST_TOO_LARGE,
			"a message on the stream has %d bytes; the limit is %d bytes a message", size, limit)
		return
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	now := time.Now()
	for b := buf.ReadOnlyData(); len(b) > 0; {
		num, typ, n := protowire.ConsumeTag(b)
		if n > 0 {
			b = b[n:]
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			field, fault := locate((&pb.AppendStreamRequest{}).ProtoReflect().Descriptor(), b)
			a.err = api.Invalid(field, "%s; the request is not a valid %s message", fault, "tidemark.v1.AppendStreamRequest")
			return
		}
		if num == 1 && typ == protowire.BytesType {
			raw, _ := protowire.ConsumeBytes(b)
			if !a.add(raw, now) {
				return
			}
		}
		b = b[n:]
	}
}

// add takes one append; false if nothing tells which request it is.
func (a *arrivals) add(raw []byte, now time.Time) bool {
	r := &replication.StreamRequest{Size: int64(len(raw)), Arrived: now}
	a.requests = append(a.requests, r)
	refusal := a.admissible(r, raw)
	if refusal == nil {
		r.Append = &pb.AppendRequest{}
		if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, r.Append); err == nil {
			if e := checkAppend(r.Append); e != nil {
				r.Refused = e
			}
			return true
		}
		md := r.Append.ProtoReflect().Descriptor()
		field, fault := locate(md, raw)
		refusal = api.Invalid(field, "%s; the request is not a valid %s message", fault, md.FullName())
	}
	r.Refused = refusal
	r.Append, r.Opaque = skim(raw)
	if r.Append.GetRequestId() == "" {
		a.requests = a.requests[:len(a.requests)-1]
		a.release([]*replication.StreamRequest{r})
		a.err = refusal
		return false
	}
	return true
}

// admissible says why an append is not to be decoded, or takes its bytes of the chain's budget.
func (a *arrivals) admissible(r *replication.StreamRequest, raw []byte) *api.Error {
	if len(raw) > a.chain.maxRequest {
		return tooLarge(len(raw), a.chain.maxRequest)
	}
	if len(raw) > scanAbove {
		if e := countElements(raw); e != nil {
			return e
		}
	}
	if a.chain.bytes.Add(r.Size) > a.chain.maxBytes {
		a.chain.bytes.Add(-r.Size)
		return api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY,
			"requests of %d bytes are at work on this node, which is its limit; ask again later", a.chain.maxBytes).After(retryBusy)
	}
	r.Held = r.Size
	return nil
}

// release gives back what requests hold of the chain's budget.
func (a *arrivals) release(requests []*replication.StreamRequest) {
	for _, r := range requests {
		a.chain.bytes.Add(-r.Held)
		r.Held = 0
	}
}

// skim reads of an encoded append what says which one it is: its request_id, its writer and its
// aggregates. opaque: these cannot be told, or are more than any request has.
func skim(b []byte) (req *pb.AppendRequest, opaque bool) {
	const (
		fieldID        = 1 // of AppendRequest
		fieldClient    = 2
		fieldWrites    = 3
		fieldAggregate = 1 // of Write
	)
	req = &pb.AppendRequest{}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return req, true
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return req, true
		}
		if value, _ := protowire.ConsumeBytes(b); typ == protowire.BytesType && len(value) > 0 {
			switch {
			case num == fieldID && len(value) <= maxRequestID:
				req.RequestId = string(value)
			case num == fieldClient && len(value) <= maxPart:
				req.ClientId = string(value)
			case num == fieldWrites:
				w := &pb.Write{Aggregate: &pb.AggregateKey{}}
				eachMessage(value, fieldAggregate, func(key []byte) {
					if len(key) > 4*maxPart || (proto.UnmarshalOptions{DiscardUnknown: true, Merge: true}).Unmarshal(key, w.Aggregate) != nil {
						opaque = true
					}
				})
				if len(req.Writes) >= maxWrites {
					return req, true
				}
				req.Writes = append(req.Writes, w)
			}
		}
		b = b[n:]
	}
	return req, opaque
}

func itoa(i int) string { return strconv.Itoa(i) }
