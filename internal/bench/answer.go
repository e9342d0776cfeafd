package bench

import (
	"fmt"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that answerCodec adds to
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// answer is what the generator needs of an AppendResponse.
type answer struct {
	version uint64
}

// answers is what the generator needs of an AppendStreamResponse.
type answers struct {
	all []streamAnswer
}

// streamAnswer is the answer to the append of a slot; err is nil if it landed.
type streamAnswer struct {
	slot int
	err  error
}

// answerCodec is gRPC's protobuf codec, except that it reads an AppendResponse into an
// answer, and an AppendStreamResponse into answers, without making messages of it.
type answerCodec struct{ encoding.CodecV2 }

func newAnswerCodec() answerCodec { return answerCodec{encoding.GetCodecV2("proto")} }

func (c answerCodec) Unmarshal(data mem.BufferSlice, v any) error {
	a, ok := v.(interface{ read([]byte) error })
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

// Field numbers of AppendStreamResponse and AppendAnswer.
const (
	fieldAnswers   = 1
	fieldRequestID = 1
	fieldError     = 3
)

func (a *answers) read(b []byte) error {
	a.all = a.all[:0]
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("the answer is no AppendStreamResponse: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return fmt.Errorf("the answer is no AppendStreamResponse: %w", protowire.ParseError(n))
		}
		if num == fieldAnswers && typ == protowire.BytesType {
			one, _ := protowire.ConsumeBytes(b)
			parsed, err := readStreamAnswer(one)
			if err != nil {
				return err
			}
			a.all = append(a.all, parsed)
		}
		b = b[n:]
	}
	return nil
}

func readStreamAnswer(b []byte) (a streamAnswer, err error) {
	a.slot = -1
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return a, fmt.Errorf("the answer is no AppendAnswer: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return a, fmt.Errorf("the answer is no AppendAnswer: %w", protowire.ParseError(n))
		}
		value, _ := protowire.ConsumeBytes(b)
		switch {
		case num == fieldRequestID && typ == protowire.BytesType:
			a.slot = 0
			for _, c := range value {
				if c < '0' || c > '9' || a.slot > MaxOutstanding {
					return a, fmt.Errorf("an answer to request %q, which was not sent", value)
				}
				a.slot = 10*a.slot + int(c-'0')
			}
		case num == fieldError && typ == protowire.BytesType:
			var st spb.Status
			if err := proto.Unmarshal(value, &st); err != nil {
				return a, fmt.Errorf("the error of an answer is no Status: %w", err)
			}
			a.err = status.ErrorProto(&st)
		}
		b = b[n:]
	}
	return a, nil
}
