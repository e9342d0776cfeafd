package deploy

import (
	"bytes"
	"encoding/binary"
	"net"
	"strings"
	"testing"
)

// nameServer answers DNS questions for the IPv4 addresses of names until the test ends, and
// knows nothing else: HAProxy looks nodes up by name.
func nameServer(t *testing.T, names map[string]string) (address string) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // ends when the cleanup closes conn
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply := resolve(buf[:n], names); reply != nil {
				_, _ = conn.WriteTo(reply, from) // whoever asked asks again
			}
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return conn.LocalAddr().String()
}

// resolve answers one question (RFC 1035, section 4); nil if it is none.
func resolve(query []byte, names map[string]string) []byte {
	const header, typeA = 12, 1
	end := header + bytes.IndexByte(query[min(header, len(query)):], 0) + 1
	if end <= header || len(query) < end+4 {
		return nil
	}
	var labels []string
	for rest := query[header : end-1]; len(rest) > 0; {
		n := min(int(rest[0]), len(rest)-1)
		labels = append(labels, string(rest[1:1+n]))
		rest = rest[1+n:]
	}
	ip := net.ParseIP(names[strings.Join(labels, ".")]).To4()
	question := query[header : end+4]
	reply := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
	switch {
	case ip == nil:
		reply[3] |= 3 // no such name
	case binary.BigEndian.Uint16(query[end:]) == typeA:
		reply[7] = 1
		// The name in the question, A, IN, for 5 seconds, 4 bytes.
		reply = append(append(reply, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 5, 0, 4), ip...)
	}
	return reply
}
