package bench

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that answerCodec adds to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// answer is what the generator needs of an AppendResponse.
type answer struct {
	version uint64
}

// answerCodec is gRPC's protobuf codec, except that it reads an AppendResponse into an
// answer without making messages of it.
type answerCodec struct{ encoding.CodecV2 }

func newAnswerCodec() answerCodec { return answerCodec{encoding.GetCodecV2("proto")} }

func (c answerCodec) Unmarshal(data mem.BufferSlice, v any) error {
	a, ok := v.(*answer)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return a.read(buf.ReadOnlyData())
}

// Field numbers of api/tidemark/v1/event_store.proto.
const (
	fieldResults = 2 // of AppendResponse
	fieldVersion = 2 // of WriteResult
)

func (a *answer) read(b []byte) error {
	a.version = 0
	result, err := field(b, fieldResults, protowire.BytesType)
	if err != nil {
		return err
	}
	inner, n := protowire.ConsumeBytes(result)
	if n < 0 {
		return fmt.Errorf("the answer is no AppendResponse: %w", protowire.ParseError(n))
	}
	version, err := field(inner, fieldVersion, protowire.VarintType)
	if err != nil {
		return err
	}
	if a.version, n = protowire.ConsumeVarint(version); n < 0 {
		return fmt.Errorf("the answer is no AppendResponse: %w", protowire.ParseError(n))
	}
	return nil
}

// field returns b from the value of a field on.
func field(b []byte, number protowire.Number, kind protowire.Type) ([]byte, error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, fmt.Errorf("the answer is no AppendResponse: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if num == number && typ == kind {
			return b, nil
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return nil, fmt.Errorf("the answer is no AppendResponse: %w", protowire.ParseError(n))
		}
		b = b[n:]
	}
	return nil, fmt.Errorf("the answer has no field %d; expected an AppendResponse with one result", number)
}
