package schema

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

func compileProtobuf(definition []byte, message, eventType string) (*Validator, error) {
	set := &descriptorpb.FileDescriptorSet{}
	if err := (proto.UnmarshalOptions{RecursionLimit: maxNesting}).Unmarshal(definition, set); err != nil {
		return nil, fmt.Errorf("expected a google.protobuf.FileDescriptorSet (protoc --include_imports --descriptor_set_out): %w", err)
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return nil, fmt.Errorf("expected a set with every file that it imports (protoc --include_imports): %w", err)
	}
	desc, err := resolve(set, files, message, eventType)
	if err != nil {
		return nil, err
	}
	// The extensions that the set knows count; those of this program do not.
	options := proto.UnmarshalOptions{Resolver: dynamicpb.NewTypes(files), RecursionLimit: maxNesting, AllowPartial: true}
	name := string(desc.FullName())
	return &Validator{message: name, validate: func(payload []byte) *Violation {
		m := dynamicpb.NewMessage(desc)
		if err := options.Unmarshal(payload, m); err != nil {
			return &Violation{Rule: name, Text: "expected a message " + name + ": " + protoText(err)}
		}
		return checkMessage(m, nil)
	}}, nil
}

// protoText is an error of the protobuf library, whose texts begin differently from run to run
// so that nobody compares them.
func protoText(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return strings.TrimPrefix(strings.TrimPrefix(text, "proto:"), " ")
}

// resolve finds the message that payloads are. Without a name it is the one whose full name is
// the event type, else the only one whose last part is, else the only message of the last file,
// which is the one that was compiled and not imported.
func resolve(set *descriptorpb.FileDescriptorSet, files *protoregistry.Files, message, eventType string) (protoreflect.MessageDescriptor, error) {
	if message == "" {
		message = eventType
	} else if m := find(files, message); m != nil {
		return m, nil
	} else {
		return nil, fmt.Errorf("expected a message %q in the set, found none", message)
	}
	if m := find(files, message); m != nil {
		return m, nil
	}
	var named []protoreflect.MessageDescriptor
	var walk func(ms protoreflect.MessageDescriptors)
	walk = func(ms protoreflect.MessageDescriptors) {
		for i := range ms.Len() {
			if m := ms.Get(i); string(m.Name()) == message && !m.IsMapEntry() {
				named = append(named, m)
			}
			walk(ms.Get(i).Messages())
		}
	}
	files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		walk(f.Messages())
		return true
	})
	if len(named) == 1 {
		return named[0], nil
	}
	if n := len(set.GetFile()); n > 0 && len(named) == 0 {
		if f, err := files.FindFileByPath(set.GetFile()[n-1].GetName()); err == nil && f.Messages().Len() == 1 {
			return f.Messages().Get(0), nil
		}
	}
	return nil, fmt.Errorf("expected one message named %q, like the event type, found %d; say which message payloads are", eventType, len(named))
}

func find(files *protoregistry.Files, name string) protoreflect.MessageDescriptor {
	if !protoreflect.FullName(name).IsValid() {
		return nil
	}
	d, err := files.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	m, _ := d.(protoreflect.MessageDescriptor)
	return m
}

// checkMessage finds fields that the schema does not have, and required ones that are missing.
// Almost any bytes decode as almost any message if what is unknown is let pass, and a schema is
// of one version: who adds a field registers the next.
func checkMessage(m protoreflect.Message, path []string) *Violation {
	desc := m.Descriptor()
	if unknown := m.GetUnknown(); len(unknown) > 0 {
		number, _, _ := protowire.ConsumeTag(unknown)
		return &Violation{
			Path: pointer(append(path, strconv.Itoa(int(number)))), Rule: string(desc.FullName()),
			Text: fmt.Sprintf("expected fields of %s, found number %d, which it has not, or has with other values", desc.FullName(), number),
		}
	}
	for i := range desc.RequiredNumbers().Len() {
		f := desc.Fields().ByNumber(desc.RequiredNumbers().Get(i))
		if !m.Has(f) {
			return &Violation{
				Path: pointer(append(path, string(f.Name()))), Rule: string(f.FullName()),
				Text: fmt.Sprintf("expected the required field %s, found none", f.FullName()),
			}
		}
	}
	// In the schema's order, so that the same violation is told every time.
	for i := range desc.Fields().Len() {
		f := desc.Fields().Get(i)
		if f.Message() == nil || !m.Has(f) {
			continue
		}
		if v := checkField(m.Get(f), f, append(path, string(f.Name()))); v != nil {
			return v
		}
	}
	var found *Violation
	m.Range(func(f protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if f.IsExtension() && f.Message() != nil && found == nil {
			found = checkField(value, f, append(path, "["+string(f.FullName())+"]"))
		}
		return found == nil
	})
	return found
}

func checkField(value protoreflect.Value, f protoreflect.FieldDescriptor, path []string) *Violation {
	switch {
	case f.IsMap():
		if f.MapValue().Message() == nil {
			return nil
		}
		var found *Violation
		value.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			found = checkMessage(v.Message(), append(path, k.String()))
			return found == nil
		})
		return found
	case f.IsList():
		list := value.List()
		for i := range list.Len() {
			if v := checkMessage(list.Get(i).Message(), append(path, strconv.Itoa(i))); v != nil {
				return v
			}
		}
		return nil
	}
	return checkMessage(value.Message(), path)
}
