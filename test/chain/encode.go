package chain

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"time"

	"lukechampine.com/blake3"
)

// object is a message as JSON: what another implementation sees.
type object map[string]any

func (o object) child(name string) (object, bool) {
	v, ok := o[name].(map[string]any)
	return v, ok
}

func (o object) text(name string) string {
	s, _ := o[name].(string)
	return s
}

// number reads an integer, which JSON has as a number up to 32 bits, and as a text above.
func (o object) number(name string) uint64 {
	switch v := o[name].(type) {
	case float64:
		return uint64(v)
	case string:
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			panic(fmt.Sprintf("%s: %v", name, err))
		}
		return n
	}
	return 0
}

func (o object) bytes(name string) []byte {
	b, err := base64.StdEncoding.DecodeString(o.text(name))
	if err != nil {
		panic(fmt.Sprintf("%s: %v", name, err))
	}
	return b
}

func (o object) time(name string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, o.text(name))
	if err != nil {
		panic(fmt.Sprintf("%s: %v", name, err))
	}
	return t
}

func (o object) events() (out []object) {
	list, _ := o["events"].([]any)
	for _, e := range list {
		out = append(out, e.(map[string]any))
	}
	return out
}

type buffer []byte

func (b *buffer) u8(v byte)     { *b = append(*b, v) }
func (b *buffer) u32(v uint64)  { *b = binary.BigEndian.AppendUint32(*b, uint32(v)) }
func (b *buffer) u64(v uint64)  { *b = binary.BigEndian.AppendUint64(*b, v) }
func (b *buffer) str(v string)  { b.u32(uint64(len(v))); *b = append(*b, v...) }
func (b *buffer) there(ok bool) { b.u8(map[bool]byte{true: 1}[ok]) }

// canonicalBatch is canonical(batch) of docs/chain.md.
func canonicalBatch(o object) []byte {
	var b buffer
	k, _ := o.child("aggregate")
	b.str(k.text("org"))
	b.str(k.text("type"))
	b.str(k.text("id"))
	b.u32(o.number("incarnation"))
	b.u64(o.number("version"))
	b.u32(o.number("shard"))
	b.u64(o.number("position"))
	b.u64(o.number("commit_first_position"))
	b.u32(o.number("commit_count"))
	b.str(o.text("client_id"))
	at := o.time("committed_at")
	b.u64(uint64(at.Unix()*1_000_000_000 + int64(at.Nanosecond())))
	b.u64(o.number("first_event_number"))
	b.u32(uint64(len(o.events())))
	for _, e := range o.events() {
		b = append(b, canonicalEvent(e)...)
	}
	return b
}

// canonicalEvent is canonical(event) of docs/chain.md.
func canonicalEvent(o object) []byte {
	var b buffer
	b.u64(o.number("client_seq"))
	b.str(o.text("event_id"))
	b.str(o.text("type"))
	schema, _ := o.child("schema")
	b.u32(schema.number("major"))
	b.u32(schema.number("minor"))
	_, occurred := o["occurred_at"].(string)
	if b.there(occurred); occurred {
		at := o.time("occurred_at")
		b.u64(uint64(at.Unix()))
		b.u32(uint64(at.Nanosecond()))
	}
	b.str(o.text("content_type"))
	metadata, _ := o.child("metadata")
	var keys []string
	for k := range metadata {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b.u32(uint64(len(keys)))
	for _, k := range keys {
		b.str(k)
		b.str(metadata.text(k))
	}
	encryption, encrypted := o.child("encryption")
	if b.there(encrypted); encrypted {
		b.str(encryption.text("scheme"))
		b.str(encryption.text("key_id"))
		b.str(string(encryption.bytes("nonce")))
	}
	b.str(string(o.bytes("payload")))
	return b
}

// chainHash is the hash of a batch behind the hash that it says is before it.
func chainHash(o object) []byte {
	sum := blake3.Sum256(append(o.bytes("previous_chain_hash"), canonicalBatch(o)...))
	return sum[:]
}
