package history

import "github.com/tidemark-db/tidemark/wal/record"

// Head is the small, always current description of an aggregate: the value of h/.
type Head struct {
	// Version is the newest version of this life; after a delete it stays what it was.
	Version     uint64
	Incarnation uint32
	// Floor is the first version that can be read (1 unless trimmed).
	Floor uint64
	// FirstLive is the position of the batch at Floor; a writer row below it is trimmed.
	FirstLive uint64
	// EventCount is how many events were ever written, trimmed ones included.
	EventCount uint64
	// CreatedAt and CommittedAt (newest batch) are Unix nanoseconds.
	CreatedAt, CommittedAt int64
	// Position of the newest change.
	Position uint64
	// LastClient wrote the newest batch; LastMark is that writer's mark.
	LastClient string
	LastMark   uint64
	// Deleted, Recreatable and Restart are what the delete said, if there was one.
	Deleted, Recreatable, Restart bool
	// Chain is the chain hash of the newest batch.
	Chain record.Hash
}

// Row is one writer row: the permanent header of one event. Client, ClientSeq and Position
// are in its key, the rest in its value.
type Row struct {
	Key       record.Key
	Client    string
	ClientSeq uint64
	Position  uint64

	Version     uint64
	Incarnation uint32
	EventIndex  uint32 // within its batch
	EventNumber uint64
	CommittedAt int64 // Unix nanoseconds
	FirstSeq    uint64
	LastSeq     uint64
	EventCount  uint32 // of its batch
	CommitFirst uint64
	CommitCount uint32
	EventID     string
	Content     record.Hash
	// Repeated: a later event of the same batch has the same sequence, which only an
	// unenforced write can do. The row describes the first one.
	Repeated bool
}

// ChangeKind says what a position holds.
type ChangeKind byte

// Kinds of changes.
const (
	ChangeBatch ChangeKind = iota + 1
	ChangeTrim
	ChangeDelete
)

// Change is one position of the commit order.
type Change struct {
	Key         record.Key
	Incarnation uint32
	Version     uint64
	Kind        ChangeKind
}

// Applied says how far the history is: the value of m/applied, written in the same Pebble
// batch as what it describes.
type Applied struct {
	Index       uint64 // raft index
	Term        uint64 // raft term of that entry
	Position    uint64 // last position assigned
	CommittedAt int64  // last committed_at, Unix nanoseconds
	Timeline    string // 32 hex digits
	Digest      record.Hash
}
