package config

import (
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// unit is a suffix that a size may have.
type unit struct {
	suffix string
	bytes  int64
}

// units are tried in this order, so that "MiB" is not taken for "B".
func units() []unit {
	return []unit{
		{"KiB", kib}, {"MiB", mib}, {"GiB", gib}, {"TiB", tib},
		{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
		{"B", 1}, {"", 1},
	}
}

// ParseSize reads a number of bytes: "256MiB", "1.5GiB", "10MB", "4096".
func ParseSize(text string) (int64, error) {
	for _, u := range units() {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		number = strings.TrimRight(number, " ")
		if n, err := strconv.ParseUint(number, 10, 63); err == nil {
			if int64(n) > math.MaxInt64/u.bytes {
				return 0, fmt.Errorf("%q is too large", text)
			}
			return int64(n) * u.bytes, nil
		}
		// Fractions, of a unit only. ParseFloat alone would take "1e3", "Inf" and "0x10".
		if u.bytes > 1 && strings.Trim(number, "0123456789.") == "" {
			f, err := strconv.ParseFloat(number, 64)
			if err == nil && f*float64(u.bytes) < math.MaxInt64 {
				return int64(f * float64(u.bytes)), nil
			}
		}
		break
	}
	return 0, fmt.Errorf("%q is not a size such as 256MiB or 4096", text)
}

// FormatSize writes a number of bytes so that ParseSize gives it back.
func FormatSize(n int64) string {
	for _, u := range []unit{{"TiB", tib}, {"GiB", gib}, {"MiB", mib}, {"KiB", kib}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// bounds says which values a setting takes, for help and documentation. Empty = see Unit.
func (s *Setting) bounds() string {
	var text string
	switch s.kind {
	case kindWord:
		return strings.Join(s.words, ", ")
	case kindSize:
		text = FormatSize(s.min) + " to " + FormatSize(s.max)
	case kindCount, kindPercent:
		text = fmt.Sprintf("%d to %d", s.min, s.max)
	case kindDuration:
		text = formatDuration(s.min) + " to " + formatDuration(s.max)
	default:
		return ""
	}
	if s.zero {
		text += ", or 0"
	}
	return text
}

// usage is the setting's help with its bounds and its variable.
func (s *Setting) usage() string {
	text := s.Help
	if b := s.bounds(); b != "" {
		text += " (" + b + ")"
	}
	return text + " [" + s.Variable() + "]"
}

// formatDuration writes 10m for 10m0s.
func formatDuration(nanoseconds int64) string {
	text := time.Duration(nanoseconds).String()
	if short, ok := strings.CutSuffix(text, "m0s"); ok {
		text = short + "m"
	}
	if short, ok := strings.CutSuffix(text, "h0m"); ok {
		text = short + "h"
	}
	return text
}

// expectation says what a setting takes, for messages.
func (s *Setting) expectation() string {
	var text string
	switch s.kind {
	case kindText:
		text = "a name of 1 to 64 characters from a-z A-Z 0-9 . _ -"
	case kindPath:
		text = "a path"
	case kindAddress:
		text = "an address such as 127.0.0.1:7440"
	case kindPeers:
		text = "peers such as n1=10.0.0.1:7441,n2=10.0.0.2:7441"
	case kindWord:
		text = strings.Join(s.words, " or ")
	case kindSize:
		text = fmt.Sprintf("a size from %s to %s, in bytes or with a unit such as KiB, MiB or MB", FormatSize(s.min), FormatSize(s.max))
	case kindCount:
		text = fmt.Sprintf("a whole number from %d to %d", s.min, s.max)
	case kindPercent:
		text = fmt.Sprintf("a percentage from %d to %d, without a sign", s.min, s.max)
	case kindDuration:
		text = fmt.Sprintf("a duration from %s to %s, with a unit", formatDuration(s.min), formatDuration(s.max))
	}
	if s.zero {
		text += ", or 0"
	}
	if s.empty {
		text += ", or nothing"
	}
	return text
}

// parse reads text into the setting's field of c. It reports whether text is a value that
// the setting can have; if not, the field is left alone.
func (s *Setting) parse(c *Config, text string) bool {
	if text == "" && s.kind != kindPeers {
		if s.empty {
			*s.field(c).(*string) = ""
		}
		return s.empty
	}
	switch s.kind {
	case kindText:
		return s.setText(c, text, IsNodeID(text))
	case kindPath:
		return s.setText(c, text, !strings.ContainsRune(text, 0))
	case kindAddress:
		return s.setText(c, text, IsAddress(text))
	case kindWord:
		return s.setText(c, text, slices.Contains(s.words, text))
	case kindPeers:
		peers, ok := parsePeers(text)
		if ok {
			*s.field(c).(*[]Peer) = peers
		}
		return ok
	case kindSize:
		n, err := ParseSize(text)
		ok := err == nil && s.within(n)
		if ok {
			*s.field(c).(*int64) = n
		}
		return ok
	case kindCount, kindPercent:
		n, err := strconv.ParseInt(text, 10, 64)
		ok := err == nil && s.within(n)
		if ok {
			*s.field(c).(*int) = int(n)
		}
		return ok
	case kindDuration:
		d, err := time.ParseDuration(text)
		ok := err == nil && s.within(int64(d))
		if ok {
			*s.field(c).(*time.Duration) = d
		}
		return ok
	}
	return false
}

func (s *Setting) setText(c *Config, text string, ok bool) bool {
	if ok {
		*s.field(c).(*string) = text
	}
	return ok
}

func (s *Setting) within(n int64) bool {
	return n >= s.min && n <= s.max || n == 0 && s.zero
}

// show is format for people: a 0 that the node replaces with a value of its own says so.
func (s *Setting) show(c *Config) string {
	text := s.format(c)
	if text == "0" && strings.Contains(s.Help, "0 = automatic") {
		return "0 (automatic)"
	}
	return text
}

// format writes the value that c has for the setting, so that parse gives it back.
func (s *Setting) format(c *Config) string {
	switch v := s.field(c).(type) {
	case *string:
		return *v
	case *int:
		return strconv.Itoa(*v)
	case *int64:
		return FormatSize(*v)
	case *time.Duration:
		if *v == 0 {
			return "0"
		}
		return formatDuration(int64(*v))
	case *[]Peer:
		parts := make([]string, len(*v))
		for i, p := range *v {
			parts[i] = p.ID + "=" + p.Address
		}
		return strings.Join(parts, ",")
	}
	return ""
}

// IsNodeID says whether s can name a node: 1 to 64 characters from a-z A-Z 0-9 . _ -.
func IsNodeID(s string) bool {
	if len(s) == 0 || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("._-", rune(c)) {
			return false
		}
	}
	return true
}

// IsAddress says whether s is host:port, with a port number. The host may be empty.
func IsAddress(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(s, " \t\n/") {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

func parsePeers(text string) ([]Peer, bool) {
	if text == "" {
		return nil, true
	}
	var peers []Peer
	for part := range strings.SplitSeq(text, ",") {
		id, address, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || !IsNodeID(id) || !IsAddress(address) {
			return nil, false
		}
		peers = append(peers, Peer{ID: id, Address: address})
	}
	return peers, true
}
