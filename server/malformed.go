package server

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// locate finds the field at which b stops being a message of type md, and says what is
// wrong there. It runs only after decoding has failed, so that the answer can name a field
// as every other refusal does; the message's own name stands for a fault between fields.
func locate(md protoreflect.MessageDescriptor, b []byte) (field, fault string) {
	field, fault, found := locateIn(md, "", b)
	if !found {
		fault = "cannot be decoded"
	}
	if field == "" {
		field = string(md.Name())
	}
	return field, fault
}

func locateIn(md protoreflect.MessageDescriptor, path string, b []byte) (field, fault string, found bool) {
	seen := map[protowire.Number]int{} // elements so far of the repeated fields
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return path, "ends in the middle of a field, or has bytes that are no protobuf", true
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			name := path
			if fd := md.Fields().ByNumber(num); fd != nil {
				name = fieldPath(path, fd, seen[num])
			}
			return name, "ends in the middle of its value", true
		}
		value := b[:n]
		b = b[n:]
		fd := md.Fields().ByNumber(num)
		if fd == nil || typ != protowire.BytesType {
			continue
		}
		name := fieldPath(path, fd, seen[num])
		seen[num]++
		content, _ := protowire.ConsumeBytes(value)
		switch fd.Kind() {
		case protoreflect.StringKind:
			if !utf8.Valid(content) {
				return name, "is not valid UTF-8", true
			}
		case protoreflect.MessageKind:
			if field, fault, found = locateIn(fd.Message(), name, content); found {
				return field, fault, true
			}
		}
	}
	return "", "", false
}

// fieldPath is the path of fd below parent: "writes[2].events[0].type". A map is named as
// a whole: its entries have no order on the wire.
func fieldPath(parent string, fd protoreflect.FieldDescriptor, index int) string {
	name := string(fd.Name())
	switch {
	case fd.ContainingMessage().IsMapEntry():
		return parent
	case fd.IsList():
		name = fmt.Sprintf("%s[%d]", name, index)
	}
	if parent == "" {
		return name
	}
	return parent + "." + name
}
