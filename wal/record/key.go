package record

import "strings"

// MaxPart is the most bytes that one part of an aggregate key, or a client_id, may have.
const MaxPart = 200

// Key is an aggregate's address in its stored form: org, type and id, each followed by a
// zero byte. Parts hold no control characters, so the form is unambiguous, and byte order
// of keys is byte order of (org, type, id).
type Key string

// MakeKey joins three valid parts.
func MakeKey(org, typ, id string) Key {
	b := make([]byte, 0, len(org)+len(typ)+len(id)+3)
	b = append(b, org...)
	b = append(b, 0)
	b = append(b, typ...)
	b = append(b, 0)
	b = append(b, id...)
	b = append(b, 0)
	return Key(b)
}

// Parts splits a key; ok is false if it is not a well-formed one.
func (k Key) Parts() (org, typ, id string, ok bool) {
	s := string(k)
	org, s, ok = strings.Cut(s, "\x00")
	if !ok {
		return "", "", "", false
	}
	typ, s, ok = strings.Cut(s, "\x00")
	if !ok {
		return "", "", "", false
	}
	id, s, ok = strings.Cut(s, "\x00")
	if !ok || s != "" || org == "" || typ == "" || id == "" {
		return "", "", "", false
	}
	return org, typ, id, true
}

// OfType is the beginning of the key that its type's aggregates share: org and type, each
// followed by a zero byte; "" if the key is malformed.
func (k Key) OfType() string {
	i := strings.IndexByte(string(k), 0)
	j := strings.IndexByte(string(k[i+1:]), 0)
	if i < 0 || j < 0 {
		return ""
	}
	return string(k[:i+j+2])
}

// String is the text form org/type/id.
func (k Key) String() string {
	org, typ, id, ok := k.Parts()
	if !ok {
		return "invalid key"
	}
	return org + "/" + typ + "/" + id
}
