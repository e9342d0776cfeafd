package record

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// The requests that are no appends. Behind the length, the kind and the time:
//
//	trim            = str key | u8 flags | u64 expected_version | u64 keep_from_version
//	delete          = u32 n | n x (str key | u8 flags | u64 expected_version)
//	register_schema = str org | str type | str event type | u32 major | u32 minor | u8 format
//	                  str message | bytes definition
//
// The deletes of one request happen together or not at all. A value that its flag does not
// announce is 0.

// Flags of a trim and of a delete.
const (
	changeHasExpected = 1 << iota
	changeRecreatable
	changeRestart
	changeForget
	trimFlags   = changeHasExpected
	deleteFlags = 1<<iota - 1
)

// Trim asks to make the batches of an aggregate below KeepFrom unreadable.
type Trim struct {
	Key         Key
	HasExpected bool
	Expected    uint64
	KeepFrom    uint64
}

// Delete asks to delete an aggregate.
type Delete struct {
	Key         Key
	HasExpected bool
	Expected    uint64
	// Recreatable, Restart and Forget are allow_recreate, restart_versions and
	// forget_writers.
	Recreatable, Restart, Forget bool
}

// Schema asks to register what events of one type and version must look like.
type Schema struct {
	Org, Type, EventType string
	Major, Minor         uint32
	// Format is the number of the API's SchemaFormat.
	Format byte
	// Message is the full name of a Protobuf message; empty for other formats.
	Message    string
	Definition []byte // aliases the entry
}

// AppendTrim appends a trim as a whole request.
func AppendTrim(dst []byte, committedAt int64, t *Trim) []byte {
	start := len(dst)
	dst = startRequest(dst, KindTrim, committedAt)
	var flags byte
	if t.HasExpected {
		flags |= changeHasExpected
	}
	dst = appendGuard(dst, t.Key, flags, t.Expected)
	dst = binary.BigEndian.AppendUint64(dst, t.KeepFrom)
	FinishRequest(dst, start)
	return dst
}

// AppendDeletes appends the deletes of one request.
func AppendDeletes(dst []byte, committedAt int64, deletes []Delete) []byte {
	start := len(dst)
	dst = startRequest(dst, KindDelete, committedAt)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(deletes)))
	for i := range deletes {
		d := &deletes[i]
		var flags byte
		for _, f := range []struct {
			set bool
			bit byte
		}{{d.HasExpected, changeHasExpected}, {d.Recreatable, changeRecreatable}, {d.Restart, changeRestart}, {d.Forget, changeForget}} {
			if f.set {
				flags |= f.bit
			}
		}
		dst = appendGuard(dst, d.Key, flags, d.Expected)
	}
	FinishRequest(dst, start)
	return dst
}

func appendGuard(dst []byte, k Key, flags byte, expected uint64) []byte {
	dst = appendString(dst, string(k))
	dst = append(dst, flags)
	return binary.BigEndian.AppendUint64(dst, expected)
}

// AppendSchema appends the registration of a schema as a whole request.
func AppendSchema(dst []byte, committedAt int64, s *Schema) []byte {
	start := len(dst)
	dst = startRequest(dst, KindRegisterSchema, committedAt)
	dst = appendString(dst, s.Org)
	dst = appendString(dst, s.Type)
	dst = appendString(dst, s.EventType)
	dst = binary.BigEndian.AppendUint32(dst, s.Major)
	dst = binary.BigEndian.AppendUint32(dst, s.Minor)
	dst = append(dst, s.Format)
	dst = appendString(dst, s.Message)
	dst = appendBytes(dst, s.Definition)
	FinishRequest(dst, start)
	return dst
}

// readGuard reads what trims and deletes have in common.
func readGuard(c *cursor, allowed byte) (k Key, flags byte, expected uint64) {
	k, flags, expected = Key(c.bytes()), c.u8(), c.u64()
	_, _, _, ok := k.Parts()
	if !ok || flags&^allowed != 0 || (flags&changeHasExpected == 0 && expected != 0) {
		c.bad = true
	}
	return k, flags, expected
}

func readTrim(c *cursor) (Trim, error) {
	k, flags, expected := readGuard(c, trimFlags)
	t := Trim{Key: k, HasExpected: flags&changeHasExpected != 0, Expected: expected, KeepFrom: c.u64()}
	if c.bad {
		return Trim{}, fmt.Errorf("%w: trim ends early, or has a malformed key or an unknown flag", ErrCorrupt)
	}
	return t, nil
}

func readDeletes(c *cursor, deletes []Delete) ([]Delete, error) {
	n := c.u32()
	if n == 0 {
		c.bad = true
	}
	for i := uint32(0); i < n && !c.bad; i++ {
		k, flags, expected := readGuard(c, deleteFlags)
		deletes = append(deletes, Delete{
			Key: k, HasExpected: flags&changeHasExpected != 0, Expected: expected,
			Recreatable: flags&changeRecreatable != 0, Restart: flags&changeRestart != 0, Forget: flags&changeForget != 0,
		})
	}
	if c.bad {
		return nil, fmt.Errorf("%w: delete ends early, is empty, or has a malformed key or an unknown flag", ErrCorrupt)
	}
	return deletes, nil
}

func readSchema(c *cursor) (Schema, error) {
	s := Schema{Org: c.str(), Type: c.str(), EventType: c.str(), Major: c.u32(), Minor: c.u32(), Format: c.u8(), Message: c.str(), Definition: c.bytes()}
	for _, part := range []string{s.Org, s.Type, s.EventType} {
		if part == "" || strings.IndexByte(part, 0) >= 0 {
			c.bad = true
		}
	}
	if c.bad {
		return Schema{}, fmt.Errorf("%w: registration of a schema ends early, or has a malformed org, type or event type", ErrCorrupt)
	}
	return s, nil
}
