package model

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// text writes a message on one line: every field that is set, in the order of its number.
// Times and hashes, which no script can know, are left out, and so are the timeline and an
// aggregate's org and type. Positions count from the world's base.
func (w *world) text(msg proto.Message) string {
	var words []string
	fields := msg.ProtoReflect().Descriptor().Fields()
	order := make([]protoreflect.FieldDescriptor, fields.Len())
	for i := range order {
		order[i] = fields.Get(i)
	}
	sort.Slice(order, func(i, j int) bool { return order[i].Number() < order[j].Number() })
	for _, f := range order {
		if !msg.ProtoReflect().Has(f) || f.Name() == "timeline" || f.Name() == "request_id" || strings.HasSuffix(string(f.Name()), "chain_hash") {
			continue
		}
		v := msg.ProtoReflect().Get(f)
		switch {
		case f.IsList():
			var items []string
			for i := range v.List().Len() {
				items = append(items, w.valueText(f, v.List().Get(i)))
			}
			words = append(words, string(f.Name())+"=["+strings.Join(items, " ")+"]")
		case f.IsMap():
			words = append(words, fmt.Sprintf("%s=%d entries", f.Name(), v.Map().Len()))
		case f.Message() != nil && f.Message().FullName() == "google.protobuf.Timestamp":
			continue
		case f.Kind() == protoreflect.BoolKind:
			words = append(words, string(f.Name()))
		default:
			words = append(words, string(f.Name())+"="+w.valueText(f, v))
		}
	}
	return strings.Join(words, " ")
}

func (w *world) valueText(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch {
	case f.Message() != nil:
		if k, ok := v.Message().Interface().(*pb.AggregateKey); ok {
			return k.GetId()
		}
		return "{" + w.text(v.Message().Interface()) + "}"
	case f.Name() == "position" || f.Name() == "commit_first_position":
		return strconv.FormatUint(v.Uint()-w.base, 10)
	case f.Kind() == protoreflect.EnumKind:
		return strconv.Itoa(int(v.Enum()))
	case f.Kind() == protoreflect.BytesKind:
		return string(v.Bytes())
	}
	return v.String()
}
