package importer

import (
	"bytes"
	"encoding/json"
	"mime"
	"strings"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// appendString appends s, which must be valid UTF-8, as a JSON string. Only what JSON
// requires to be escaped is: encoding/json would also escape <, > and &.
func appendString[S string | []byte](dst []byte, s S) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// maxJSONDepth is how deeply nested a payload may be to be written into an export line as
// it is. encoding/json gives up at 10,000, counted from the line's own braces.
const maxJSONDepth = 1000

// embeddable says whether a payload can stand in an export line as JSON and be cut out
// again byte for byte: it is JSON by its content type and in fact, is valid UTF-8 (which
// json.Valid does not check), and has no white space around it and no line break in it.
func embeddable(contentType string, payload []byte) bool {
	return isJSONType(contentType) &&
		len(payload) > 0 && !isSpace(payload[0]) && !isSpace(payload[len(payload)-1]) &&
		bytes.IndexByte(payload, '\n') < 0 && bytes.IndexByte(payload, '\r') < 0 &&
		utf8.Valid(payload) && depth(payload) <= maxJSONDepth && json.Valid(payload)
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// depth is how deeply payload is nested, or more if brackets stand in its strings.
func depth(payload []byte) int {
	open, deepest := 0, 0
	for _, c := range payload {
		switch c {
		case '{', '[':
			open++
			deepest = max(deepest, open)
		case '}', ']':
			open--
		}
	}
	return deepest
}

// isJSONType says whether a content type is that of JSON: application/json or any +json.
func isJSONType(contentType string) bool {
	if contentType == jsonType {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == jsonType || strings.HasSuffix(media, "+json"))
}

// jsonType is the content type of the payloads that import makes.
const jsonType = "application/json"
