package contract

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// failureText is a whole error status: the gRPC code, the text, and the details but for
// ErrorInfo, of which only what does not fit the text is told. timeline is the node's, which
// no script can know.
func failureText(err error, timeline string) string {
	st := status.Convert(err)
	lines := []string{st.Code().String() + " " + st.Message()}
	info := "no ErrorInfo"
	for _, d := range st.Details() {
		m, ok := d.(proto.Message)
		if !ok {
			lines = append(lines, fmt.Sprintf("  undecodable detail %v", d))
			continue
		}
		if e, ok := m.(*errdetails.ErrorInfo); ok {
			info = infoFault(e, st.Message())
			continue
		}
		lines = append(lines, "  "+string(m.ProtoReflect().Descriptor().Name())+" "+text(m))
	}
	if info != "" {
		lines = append(lines, "  "+info)
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), timeline, "TIMELINE")
}

// infoFault says where an ErrorInfo differs from what goes with the text.
func infoFault(e *errdetails.ErrorInfo, message string) string {
	number, _, _ := strings.Cut(message, " ")
	n, _ := strconv.Atoi(number)
	want := &errdetails.ErrorInfo{
		Domain: "tidemark", Reason: strings.TrimPrefix(pb.ErrorCode(n).String(), "ERROR_CODE_"), Metadata: map[string]string{"code": number},
	}
	if proto.Equal(e, want) {
		return ""
	}
	return "ErrorInfo " + text(e)
}

// masked are fields whose value no script can know.
var masked = map[protoreflect.Name]bool{"committed_at": true, "created_at": true, "last_committed_at": true, "chain_hash": true, "previous_chain_hash": true, "timeline": true}

// text writes every field that is set, in the order of their numbers.
func text(m proto.Message) string {
	var fields []protoreflect.FieldDescriptor
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		fields = append(fields, f)
		return true
	})
	sort.Slice(fields, func(i, j int) bool { return fields[i].Number() < fields[j].Number() })
	var words []string
	for _, f := range fields {
		v := m.ProtoReflect().Get(f)
		switch {
		case masked[f.Name()]:
			words = append(words, string(f.Name())+"=*")
		case f.IsList():
			for i := range v.List().Len() {
				words = append(words, string(f.Name())+"="+valueText(f, v.List().Get(i)))
			}
		case f.IsMap():
			words = append(words, fmt.Sprintf("%s=%d entries", f.Name(), v.Map().Len()))
		default:
			words = append(words, string(f.Name())+"="+valueText(f, v))
		}
	}
	return "{" + strings.Join(words, " ") + "}"
}

func valueText(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch f.Kind() {
	case protoreflect.MessageKind:
		if k, ok := v.Message().Interface().(*pb.AggregateKey); ok {
			return k.GetOrg() + "/" + k.GetType() + "/" + k.GetId()
		}
		return text(v.Message().Interface())
	case protoreflect.EnumKind:
		return strconv.Itoa(int(v.Enum()))
	case protoreflect.StringKind:
		return strconv.Quote(v.String())
	case protoreflect.BytesKind:
		return strconv.Quote(string(v.Bytes()))
	}
	return v.String()
}
