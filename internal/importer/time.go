package importer

import (
	"fmt"
	"strings"
	"time"
)

// timeLayouts are the forms of a time that import understands. Go accepts fractions of a
// second in each that has seconds. A time without a zone is taken as UTC.
var timeLayouts = [...]string{
	"2006-01-02T15:04:05Z07:00",
	"2006-01-02 15:04:05Z07:00",
	"2006-01-02 15:04:05 Z07:00",
	"2006-01-02T15:04:05Z0700",
	"2006-01-02 15:04:05Z0700",
	"2006-01-02 15:04:05 Z0700",
	"2006-01-02T15:04:05Z07",
	"2006-01-02 15:04:05Z07",
	"2006-01-02 15:04:05 UTC",
	"2006-01-02T15:04:05",
	"2006-01-02 15:04:05",
	"2006-01-02T15:04Z07:00",
	"2006-01-02 15:04Z07:00",
	"2006-01-02T15:04",
	"2006-01-02 15:04",
	"2006-01-02",
}

// ParseTime reads a time as files have it: RFC 3339, also with a space instead of the T,
// with an offset of +01:00, +0100 or +01, without seconds, without a zone (UTC), or a date
// alone.
func ParseTime(text string) (time.Time, error) {
	s := strings.TrimSpace(text)
	if len(s) > 10 && s[10] == 't' || strings.HasSuffix(s, "z") {
		s = strings.ToUpper(s)
	}
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time; expected one such as 2010-12-30T14:32:00.5+01:00, or 2010-12-30 14:32:00 in UTC", clip(text))
}

// clip shortens a value for a message.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
