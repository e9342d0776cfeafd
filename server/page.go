package server

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"

	"github.com/tidemark-db/tidemark/api"
)

// A page token is where a list goes on: the base64 of a checksum and the last name of the
// page before. The checksum covers which list it is of, so that a token of another list is
// refused instead of misread.

const tokenSum = 4

func makeToken(last, list string) string {
	b := binary.BigEndian.AppendUint32(nil, tokenChecksum(last, list))
	return base64.RawURLEncoding.EncodeToString(append(b, last...))
}

// parseToken returns the name to go on after; an empty token is the beginning.
func parseToken(token, list string) (after string, _ *api.Error) {
	if token == "" {
		return "", nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil && len(b) > tokenSum {
		if last := string(b[tokenSum:]); binary.BigEndian.Uint32(b) == tokenChecksum(last, list) {
			return last, nil
		}
	}
	return "", api.Invalid("page_token", "is not a next_page_token of this list")
}

func tokenChecksum(last, list string) uint32 {
	return crc32.ChecksumIEEE([]byte(list + "\x00" + last))
}

// pageSize is how many entries a checked request asks for.
func pageSize(r paged) int {
	if n := r.GetPageSize(); n > 0 {
		return int(n)
	}
	return maxPage
}
