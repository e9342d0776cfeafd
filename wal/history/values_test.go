package history

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/wal/record"
)

func sampleHead() Head {
	return Head{
		Version: 300, Incarnation: 2, Floor: 5, FirstLive: 1 << 40, EventCount: 1000, CreatedAt: 1, CommittedAt: -2, Position: 1<<40 + 9,
		LastClient: "svc", LastMark: math.MaxUint64, Deleted: true, Restart: true, Chain: record.Hash{0: 0xaa, 31: 0xbb},
	}
}

func sampleRow() Row {
	return Row{
		Version: 1, Incarnation: 2, EventIndex: 3, EventNumber: 4, CommittedAt: 5, FirstSeq: 6, LastSeq: 7, EventCount: 8,
		CommitFirst: 9, CommitCount: 10, EventID: "e-1", Content: record.Hash{0: 0xcc, 31: 0xdd}, Repeated: true,
	}
}

func sampleChanges() []Change {
	return []Change{
		{Key: record.MakeKey("a", "b", "c"), Incarnation: 1, Version: 2, Kind: ChangeBatch},
		{Key: record.MakeKey("é", "b", "c"), Incarnation: math.MaxUint32, Version: math.MaxUint64, Kind: ChangeDelete},
	}
}

func sampleApplied() Applied {
	return Applied{Index: 1, Term: 2, Position: 3, CommittedAt: 4, Timeline: "00ff", Digest: record.Hash{0: 0xee, 31: 0xff}}
}

// TestValueLayout pins every value byte by byte.
func TestValueLayout(t *testing.T) {
	zeros := strings.Repeat("\x00", 30)
	h, r, a := sampleHead(), sampleRow(), sampleApplied()
	equalBytes(t, "head", appendHead(nil, &h), []byte("\x01\x05\xac\x02\x02\x05\x80\x80\x80\x80\x80\x20\xe8\x07"+
		"\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xfe\x89\x80\x80\x80\x80\x20\x03svc"+
		"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\xaa"+zeros+"\xbb"))
	equalBytes(t, "row", appendRow(nil, &r, r.EventID), []byte("\x01\x01\x01\x02\x03\x04\x00\x00\x00\x00\x00\x00\x00\x05"+
		"\x06\x07\x08\x09\x0a\x03e-1\xcc"+zeros+"\xdd"))
	equalBytes(t, "changes", appendChanges(nil, sampleChanges()), []byte("\x01\x02\x06a\x00b\x00c\x00\x01\x02\x01"+
		"\x07é\x00b\x00c\x00\xff\xff\xff\xff\x0f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x03"))
	equalBytes(t, "applied", appendApplied(nil, &a), []byte("\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02"+
		"\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x04\x0400ff\xee"+zeros+"\xff"))
}

// TestValuesRefused: every value cut short, with a byte more, or of another format is damage.
func TestValuesRefused(t *testing.T) {
	h, r, a := sampleHead(), sampleRow(), sampleApplied()
	decoders := map[string]func([]byte) error{
		string(appendHead(nil, &h)):                 func(b []byte) error { _, err := decodeHead(b); return err },
		string(appendRow(nil, &r, r.EventID)):       func(b []byte) error { return decodeRow(b, new(Row)) },
		string(appendChanges(nil, sampleChanges())): func(b []byte) error { _, err := decodeChanges(b); return err },
		string(appendApplied(nil, &a)):              func(b []byte) error { _, err := decodeApplied(b); return err },
	}
	for value, decode := range decoders {
		if err := decode([]byte(value)); err != nil {
			t.Fatal(err)
		}
		for n := range len(value) {
			corrupt(t, decode([]byte(value[:n])))
		}
		corrupt(t, decode([]byte(value+"\x00")))
		err := decode([]byte("\x02" + value[1:]))
		corrupt(t, err)
		if !strings.Contains(err.Error(), "of format 2, this version reads 1") {
			t.Errorf("another format gives %q", err)
		}
	}
	for name, value := range map[string]string{
		"unknown flag":         "\x01\x08" + string(appendHead(nil, &h))[2:],
		"longer varint":        "\x01\x05\x81\x00" + string(appendHead(nil, &h))[4:],
		"incarnation too high": "\x01\x05\xac\x02\xff\xff\xff\xff\x7f" + string(appendHead(nil, &h))[5:],
	} {
		if _, err := decodeHead([]byte(value)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("head with %s: %v", name, err)
		}
	}
	corrupt(t, decodeRow([]byte("\x01\x02"+string(appendRow(nil, &r, r.EventID))[2:]), new(Row)))
	for name, value := range map[string]string{
		"no changes":      "\x01\x00",
		"unknown kind":    "\x01\x01\x06a\x00b\x00c\x00\x01\x01\x04",
		"malformed key":   "\x01\x01\x06a\x00b\x00cc\x01\x01\x01",
		"a lying count":   "\x01\xff\xff\xff\xff\x0f\x06a\x00b\x00c\x00\x01\x01\x01",
		"a lying length":  "\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01b\x00c\x00\x01\x01",
		"one entry extra": "\x01\x02\x06a\x00b\x00c\x00\x01\x01\x01",
	} {
		if cs, err := decodeChanges([]byte(value)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("changes with %s: %v, %v", name, cs, err)
		}
	}
}

// FuzzValues: no decoder panics, and what one accepts is what its encoder writes.
func FuzzValues(f *testing.F) {
	h, r, a := sampleHead(), sampleRow(), sampleApplied()
	f.Add(appendHead(nil, &h))
	f.Add(appendRow(nil, &r, r.EventID))
	f.Add(appendChanges(nil, sampleChanges()))
	f.Add(appendApplied(nil, &a))
	f.Add([]byte("\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		accept := func(err error, again func() []byte) {
			if err == nil {
				equalBytes(t, "encoded again", again(), b)
			} else {
				corrupt(t, err)
			}
		}
		head, err := decodeHead(b)
		accept(err, func() []byte { return appendHead(nil, &head) })
		var row Row
		err = decodeRow(b, &row)
		accept(err, func() []byte { return appendRow(nil, &row, row.EventID) })
		cs, err := decodeChanges(b)
		accept(err, func() []byte { return appendChanges(nil, cs) })
		applied, err := decodeApplied(b)
		accept(err, func() []byte { return appendApplied(nil, &applied) })
	})
}

func corrupt(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("error is %v, want record.ErrCorrupt", err)
	}
}

// TestPutRowBytes stores what PutRow stores.
func TestPutRowBytes(t *testing.T) {
	s := open(t, Options{})
	want := sampleRow()
	want.Key, want.Client, want.ClientSeq, want.Position = key("1"), "w", 4, 5
	commit(t, s, func(b *Batch) {
		r := want
		r.EventID = ""
		b.PutRowBytes(&r, []byte(want.EventID))
	})
	v := s.View()
	defer v.Release()
	if got, ok, err := v.Row(want.Key, "w", 4, 5); !ok || err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %t, %v, want %v", got, ok, err, want)
	}
}
