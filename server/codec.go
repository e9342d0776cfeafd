package server

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const (
	// maxQuery bounds a request that carries no events. The largest filter that passes
	// validation takes less.
	maxQuery = 1 << 20

	// scanAbove is the size from which an append's elements are counted before it is
	// decoded. An empty element takes 2 bytes on the wire and about 100 in memory, so what
	// lies below cannot take more than a megabyte or two.
	scanAbove = 16 << 10
)

// codec is gRPC's protobuf codec with two additions: decoding into an *inbound hands the
// bytes to it, and an *outbound is bytes already. gRPC turns an error of a codec into a bare
// INTERNAL, so an inbound keeps what went wrong and the chain answers with it.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if out, ok := v.(*outbound); ok {
		return out.data, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if a, ok := v.(*arrivals); ok {
		a.decode(data)
		return nil
	}
	in, ok := v.(*inbound)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	in.decode(data)
	return nil
}

// inbound is a request on its way from bytes to a message.
type inbound struct {
	chain *chain
	msg   proto.Message
	// held is how much of the chain's byte budget the call has; the chain gives it back.
	held int64
	// err is why msg is not to be used, or nil.
	err *api.Error
}

// decode fills in.msg, or in.err.
func (in *inbound) decode(data mem.BufferSlice) {
	_, isAppend := in.msg.(*pb.AppendRequest)
	limit := in.chain.maxRequest
	if !isAppend {
		limit = min(limit, maxQuery)
	}
	size := data.Len()
	if size > limit {
		in.err = tooLarge(size, limit)
		return
	}
	if in.err = in.chain.hold(in, size); in.err != nil {
		return
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	b := buf.ReadOnlyData()
	if isAppend && size > scanAbove {
		if in.err = countElements(b); in.err != nil {
			return
		}
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, in.msg); err != nil {
		field, fault := locate(in.msg.ProtoReflect().Descriptor(), b)
		in.err = api.Invalid(field, "%s; the request is not a valid %s message", fault, in.msg.ProtoReflect().Descriptor().FullName())
	}
}

func tooLarge(size, limit int) *api.Error {
	return api.Errorf(pb.ErrorCode_ERROR_CODE_REQUEST_TOO_LARGE,
		"the request has %d bytes; the limit is %d bytes a request", size, limit)
}

// countElements refuses an encoded append that has more writes, events or metadata entries
// than any valid one, with the answer that validation would give. Bytes that are no
// protobuf pass; decoding finds them.
func countElements(b []byte) *api.Error {
	const (
		fieldWrites   = 3 // of AppendRequest
		fieldEvents   = 2 // of Write
		fieldMetadata = 8 // of NewEvent
	)
	writes, events, entries := 0, 0, 0
	eachMessage(b, fieldWrites, func(write []byte) {
		writes++
		eachMessage(write, fieldEvents, func(event []byte) {
			events++
			eachMessage(event, fieldMetadata, func([]byte) { entries++ })
		})
	})
	switch {
	case writes > maxWrites:
		return tooMany("writes", maxWrites, writes)
	case events > maxEvents:
		return api.Invalid("writes", "have %d events in all; the limit is %d events a request", events, maxEvents)
	case entries > maxEvents*maxMetadata:
		return api.Invalid("writes", "have %d metadata entries in all; the limit is %d an event", entries, maxMetadata)
	}
	return nil
}

// eachMessage calls f with every length-delimited field of number num in b, and stops at
// the first byte that is no protobuf.
func eachMessage(b []byte, num protowire.Number, f func([]byte)) {
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return
		}
		b = b[size:]
		if n == num && typ == protowire.BytesType {
			v, size := protowire.ConsumeBytes(b)
			if size < 0 {
				return
			}
			f(v)
			b = b[size:]
			continue
		}
		if size = protowire.ConsumeFieldValue(n, typ, b); size < 0 {
			return
		}
		b = b[size:]
	}
}
