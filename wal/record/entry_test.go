package record

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Pieces of an entry in hex, as wal/DESIGN.md gives them.
const (
	hexHeader = "0000000000000003" + "0000000000000004" // term, ticket
	hexKey    = "0000000e" + "61636d65006f72646572730031" + "00"
	hexTime   = "0000000000000064" // 100
	hexClient = "00000001" + "61"
	// one event: sequence 1, type "t", schema 1.0
	hexEvent = "0000000000000001" + "00000000" + "00000001" + "74" + "00000001" + "00000000" +
		"00" + "00000000" + "00000000" + "00" + "00000000"
	hexEventLength = "00000027"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// requests reads an entry and returns its requests, each in memory of its own.
func requests(t *testing.T, data []byte) (term, ticket uint64, out []Request) {
	t.Helper()
	r, err := ReadEntry(data)
	if err != nil {
		t.Fatal(err)
	}
	for {
		req, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if req == nil {
			return r.Term, r.Ticket, out
		}
		one := *req
		one.Writes = append([]Write(nil), req.Writes...)
		one.Deletes = append([]Delete(nil), req.Deletes...)
		out = append(out, one)
	}
}

func plainWrite(t *testing.T) Write {
	t.Helper()
	event := AppendEvent(nil, plain())
	h := ContentHash(event)
	if got := hex.EncodeToString(event); got != hexEvent {
		t.Fatalf("event %s, want %s", got, hexEvent)
	}
	return Write{Key: MakeKey("acme", "orders", "1"), EventCount: 1, Hashes: h[:], Events: event, Lowest: 1, Highest: 1}
}

// An entry of format 1, as version 0.1 wrote it, byte by byte: logs hold them after an upgrade.
func TestEntryOfFormat1IsRead(t *testing.T) {
	want := plainWrite(t)
	want.Flags, want.Expected, want.Previous = FlagAllowCreate|FlagEnforce|FlagHasExpected|FlagHasPrevious, 5, 6
	request := hexTime + hexClient + "00000001" +
		hexKey + "0f" + "0000000000000005" + "0000000000000006" + "00000001" + hex.EncodeToString(want.Hashes) + hexEventLength + hexEvent
	data := unhex(t, "01"+hexHeader+"00000001"+"00000083"+request)
	term, ticket, got := requests(t, data)
	wanted := []Request{{Kind: KindAppend, CommittedAt: 100, ClientID: "a", Writes: []Write{want}}}
	if term != 3 || ticket != 4 || !reflect.DeepEqual(got, wanted) {
		t.Fatalf("term %d, ticket %d,\n got %+v\nwant %+v", term, ticket, got, wanted)
	}
	// What format 1 did not know is damage in it.
	at := len("01"+hexHeader+"00000001"+"00000083"+hexTime+hexClient+"00000001"+hexKey) / 2
	data[at] |= FlagHasAfter
	if err := readAll(data); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("with a flag of format 2: %v, want ErrCorrupt", err)
	}
}

// TestEntryBytes pins format 2: every kind of request, every field.
func TestEntryBytes(t *testing.T) {
	w := plainWrite(t)
	w.Flags = FlagAllowCreate | FlagEnforce | FlagHasExpected | FlagHasPrevious | FlagHasAfter | FlagHasSchema
	w.Expected, w.Previous, w.After, w.SchemaRevision = 5, 6, 7, 8
	key := w.Key
	bare := Write{Key: key}
	trim := Trim{Key: key, HasExpected: true, Expected: 9, KeepFrom: 10}
	deletes := []Delete{
		{Key: key, HasExpected: true, Expected: 11, Recreatable: true, Restart: true, Forget: true},
		{Key: MakeKey("b", "c", "d")},
	}
	schema := Schema{Org: "acme", Type: "orders", EventType: "placed", Major: 2, Minor: 3, Format: 2, Message: "m.P", Definition: []byte("{}")}

	data := AppendEntryHeader(nil, 3, 4, 4)
	start := len(data)
	data = AppendRequestHeader(data, 0, "a", 2)
	data, _ = EncodeWrite(data, &w, []*pb.NewEvent{plain()})
	data, bare = EncodeWrite(data, &bare, []*pb.NewEvent{plain()})
	FinishRequest(data[start:], 0)
	SetCommittedAt(data[start:], 100)
	data = AppendTrim(data, 101, &trim)
	data = AppendDeletes(data, 102, deletes)
	data = AppendSchema(data, 103, &schema)

	hash := hex.EncodeToString(w.Hashes)
	rest := "00000001" + hash + hexEventLength + hexEvent
	want := "02" + hexHeader + "00000004" +
		"00000106" + "01" + hexTime + hexClient + "00000002" +
		hexKey + "3f" + "0000000000000005" + "0000000000000006" + "0000000000000007" + "0000000000000008" + rest +
		hexKey + "00" + "0000000000000000" + "0000000000000000" + rest +
		"0000002c" + "02" + "0000000000000065" + hexKey + "01" + "0000000000000009" + "000000000000000a" +
		"0000003b" + "03" + "0000000000000066" + "00000002" +
		hexKey + "0f" + "000000000000000b" +
		"00000006" + "620063006400" + "00" + "0000000000000000" +
		"0000003b" + "04" + "0000000000000067" + "00000004" + "61636d65" + "00000006" + "6f7264657273" + "00000006" + "706c61636564" +
		"00000002" + "00000003" + "02" + "00000003" + "6d2e50" + "00000002" + "7b7d"
	if got := hex.EncodeToString(data); got != want {
		t.Fatalf("entry\n got %s\nwant %s", got, want)
	}
	bare.Lowest, bare.Highest = 1, 1
	_, _, got := requests(t, data)
	wanted := []Request{
		{Kind: KindAppend, CommittedAt: 100, ClientID: "a", Writes: []Write{w, bare}},
		{Kind: KindTrim, CommittedAt: 101, Trim: trim},
		{Kind: KindDelete, CommittedAt: 102, Deletes: deletes},
		{Kind: KindRegisterSchema, CommittedAt: 103, Schema: schema},
	}
	if !reflect.DeepEqual(got, wanted) {
		t.Fatalf("read\n got %+v\nwant %+v", got, wanted)
	}
}

func TestEntryRefusesWhatNobodyWrites(t *testing.T) {
	key := MakeKey("acme", "orders", "1")
	one := func(request []byte) []byte { return append(AppendEntryHeader(nil, 1, 1, 1), request...) }
	trim := AppendTrim(nil, 0, &Trim{Key: key, KeepFrom: 2})
	flags := len(trim) - 17
	edited := func(b []byte, at int, v byte) []byte {
		b = bytes.Clone(b)
		b[at] = v
		return one(b)
	}
	for name, c := range map[string]struct {
		data []byte
		text string
	}{
		"format 3":                      {append([]byte{3}, one(trim)[1:]...), "entry format 3, this version reads 1 and 2"},
		"kind 0":                        {edited(trim, 4, 0), "kind 0"},
		"kind 5":                        {edited(trim, 4, 5), "kind 5"},
		"an unknown flag":               {edited(trim, flags, 2), "unknown flag"},
		"a guard that is not announced": {edited(trim, flags+8, 1), "trim"},
		"no deletes":                    {one(AppendDeletes(nil, 0, nil)), "delete"},
		"a malformed key":               {one(AppendDeletes(nil, 0, []Delete{{Key: "a"}})), "delete"},
		"a schema without event type":   {one(AppendSchema(nil, 0, &Schema{Org: "a", Type: "b"})), "schema"},
		"a schema of a\\0b":             {one(AppendSchema(nil, 0, &Schema{Org: "a\x00b", Type: "b", EventType: "c"})), "schema"},
	} {
		if err := readAll(c.data); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want ErrCorrupt about %q", name, err, c.text)
		}
	}
}

// reencode writes what was read of an entry again.
func reencode(r *EntryReader, requests []Request) []byte {
	data := AppendEntryHeader(nil, r.Term, r.Ticket, r.Count)
	for _, req := range requests {
		switch req.Kind {
		case KindTrim:
			data = AppendTrim(data, req.CommittedAt, &req.Trim)
		case KindDelete:
			data = AppendDeletes(data, req.CommittedAt, req.Deletes)
		case KindRegisterSchema:
			data = AppendSchema(data, req.CommittedAt, &req.Schema)
		}
	}
	return data
}

// FuzzChanges: an entry of trims, deletes and registrations has one encoding.
func FuzzChanges(f *testing.F) {
	key := MakeKey("acme", "orders", "1")
	data := AppendTrim(AppendEntryHeader(nil, 1, 2, 3), 4, &Trim{Key: key, HasExpected: true, Expected: 5, KeepFrom: 6})
	data = AppendDeletes(data, 7, []Delete{{Key: key, Recreatable: true, Forget: true}})
	f.Add(AppendSchema(data, 8, &Schema{Org: "a", Type: "b", EventType: "c", Format: 1, Definition: []byte("{}")}))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ReadEntry(data)
		var all []Request
		for err == nil {
			var req *Request
			if req, err = r.Next(); err != nil || req == nil {
				break
			}
			if req.Kind == KindAppend {
				return
			}
			one := *req
			one.Deletes = append([]Delete(nil), req.Deletes...)
			all = append(all, one)
		}
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v is not ErrCorrupt", err)
			}
			return
		}
		if again := reencode(r, all); r.format == entryFormat && !bytes.Equal(again, data) {
			t.Fatalf("read %x, which encodes to %x", data, again)
		}
	})
}
