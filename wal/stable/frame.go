package stable

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// A stored value is framed as
//
//	checksum u32 | value
//
// with a CRC-32C of the key's length (u32), the key and the value; integers are big-endian.
const frameSize = 4

// errFrame says that a framed value is not what was written.
var errFrame = errors.New("expected a value that its checksum fits, found another")

func frameSum(key, val []byte) uint32 {
	t := crc32.MakeTable(crc32.Castagnoli)
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(key)))
	return crc32.Update(crc32.Update(crc32.Checksum(n[:], t), t, key), t, val)
}

func appendFrame(dst, key, val []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, frameSum(key, val))
	return append(dst, val...)
}

// parseFrame returns the value in b, a part of it.
func parseFrame(key, b []byte) ([]byte, error) {
	if len(b) < frameSize || binary.BigEndian.Uint32(b) != frameSum(key, b[frameSize:]) {
		return nil, errFrame
	}
	return b[frameSize:], nil
}

// keysKey holds the keys that were ever set, each as its length (u32) and its bytes. It is
// there from the file's creation on.
const keysKey = "tidemark.keys"

func appendKeys(dst []byte, keys []string) []byte {
	for _, k := range keys {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(k)))
		dst = append(dst, k...)
	}
	return dst
}

func parseKeys(b []byte) ([]string, error) {
	var keys []string
	for len(b) > 0 {
		if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) > uint64(len(b)-4) {
			return nil, errors.New("expected a list of keys, found one that is cut short")
		}
		n := 4 + int(binary.BigEndian.Uint32(b))
		keys = append(keys, string(b[4:n]))
		b = b[n:]
	}
	return keys, nil
}
