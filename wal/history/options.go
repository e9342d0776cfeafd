package history

import (
	"bytes"
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// Defaults of Options.
const (
	DefaultBlockCacheBytes = 256 << 20
	DefaultMemTableBytes   = 64 << 20
)

// MinMemTableBytes is the smallest memtable that Open accepts.
const MinMemTableBytes = 64 << 10

// Options configure Open.
type Options struct {
	// Dir is the store's directory; it is created if it is missing. Nothing else may be in it.
	Dir string
	// FS is the file system that holds Dir; nil is the operating system's, watched for
	// operations that hang.
	FS vfs.FS
	// BlockCacheBytes is how much of the tables' blocks is kept in memory; 0 is the default,
	// 256 MiB. Memtables come on top: see MemoryBytes.
	BlockCacheBytes int64
	// MemTableBytes is the size of one memtable; 0 is the default, 64 MiB. Up to three exist
	// at a time.
	MemTableBytes int64
	// Logger gets what Pebble has to say; nil is silence.
	Logger *zap.Logger
	// OnFatal is called when Pebble has met an error after which it must not go on, such as a
	// failed write of its MANIFEST. It may be called on any goroutine and under Pebble's
	// locks, so it must neither block nor call the Store. The goroutine that met the error
	// stops there for good, and the process has to end. nil panics.
	OnFatal func(error)
	// OnBackgroundError is called when a flush or a compaction has failed, for example on a
	// full disk, under the same rules as OnFatal. Nothing is lost by then: Pebble keeps what
	// it could not write and tries again at once, and again, so somebody has to act. nil
	// makes the error a fatal one and passes it to OnFatal.
	OnBackgroundError func(error)

	// tune changes Pebble's options: tests make everything small and frequent with it.
	tune func(*pebble.Options)
}

// MemoryBytes is the most that block cache and memtables take together.
func (o *Options) MemoryBytes() int64 {
	return o.blockCache() + memTables*o.memTable()
}

func (o *Options) blockCache() int64 {
	if o.BlockCacheBytes > 0 {
		return o.BlockCacheBytes
	}
	return DefaultBlockCacheBytes
}

func (o *Options) memTable() int64 {
	if o.MemTableBytes > 0 {
		return o.MemTableBytes
	}
	return DefaultMemTableBytes
}

func (o *Options) validate() error {
	if o.Dir == "" {
		return fmt.Errorf("history: no directory given")
	}
	if o.BlockCacheBytes < 0 {
		return fmt.Errorf("history: block cache of %d bytes; give 0 for the default of %d, or more", o.BlockCacheBytes, int64(DefaultBlockCacheBytes))
	}
	if o.MemTableBytes != 0 && (o.MemTableBytes < MinMemTableBytes || o.MemTableBytes >= 4<<30) {
		return fmt.Errorf("history: memtable of %d bytes; give 0 for the default of %d, or from %d up to below 4 GiB", o.MemTableBytes, int64(DefaultMemTableBytes), MinMemTableBytes)
	}
	return nil
}

const (
	// memTables is how many memtables' worth of writes may wait for a flush before writes
	// stop: one being filled, one being flushed, and one for when the flush is slower than
	// the filling for a while.
	memTables = 3

	// format is the on-disk format, pinned: an upgrade of Pebble must not change files that
	// the version before can then not read. FormatValueSeparation is the newest of v2.1.
	format = pebble.FormatValueSeparation

	// comparerName is written into the store; another name refuses to open it.
	comparerName = "tidemark.history.1"

	// garbageRatio is the share of what blob files hold that may be garbage before they are
	// rewritten.
	garbageRatio = 0.3

	// separateFrom is the smallest value that goes to a blob file: below this, the handle,
	// and the second read for every look-up, cost more than moving the value along.
	separateFrom = 128
)

// newComparer orders by bytes and cuts keys with prefixLen. Everything else, the index
// separators in particular, is Pebble's bytewise default.
func newComparer() *pebble.Comparer {
	c := *pebble.DefaultComparer
	c.Name = comparerName
	c.Split = prefixLen
	c.ComparePointSuffixes = bytes.Compare
	c.CompareRangeSuffixes = bytes.Compare
	c.ImmediateSuccessor = nextPrefix
	return &c
}

// pebbleOptions are the options of the store, without cache, logger and listener. While
// reclaiming is above 0, no garbage is too little.
func (o *Options) pebbleOptions(reclaiming *atomic.Int32) *pebble.Options {
	p := &pebble.Options{
		FS:                 o.FS,
		Comparer:           newComparer(),
		FormatMajorVersion: format,
		// The raft log is the write-ahead log; what a crash takes from the memtables is
		// applied again from there.
		DisableWAL: true,

		MemTableSize:                uint64(o.memTable()),
		MemTableStopWritesThreshold: memTables,

		// Heads and marks are read at random while this is written, and every sublevel of L0
		// is one more place to look: start compacting at 4, add the second compaction at 6,
		// which is where operators are told to worry, and stop writes at 20.
		L0CompactionThreshold: 4,
		L0StopWritesThreshold: 20,
		// Two cores serve clients as well: one compaction, two under pressure.
		CompactionConcurrencyRange: func() (int, int) { return 1, 2 },
		LBaseMaxBytes:              64 << 20,
		// Each file is created, synced and entered in the directory at the cost of an fsync or
		// two, so make few: tables of 8 MiB in L0, and twice that a level.
		TargetFileSizes: [7]int64{8 << 20},

		// Fsyncs of tables share the disk with the fsync that clients wait for: hand the
		// pages to the disk in small steps.
		BytesPerSync: 512 << 10,
		MaxOpenFiles: 2000,
	}
	p.Experimental.L0CompactionConcurrency = 6
	// A read never causes a compaction: there are no tombstones to wade through, and the
	// work would come when the node is busy with readers.
	p.Experimental.ReadSamplingMultiplier = -1
	p.Experimental.SpanPolicyFunc = spanPolicy
	p.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		policy := pebble.ValueSeparationPolicy{
			Enabled:     true,
			MinimumSize: separateFrom,
			// How many blob files the values of one key range may lie in before a compaction
			// writes them into one again. At 10, values of aggregates written at random are
			// rewritten about every third compaction; reading one aggregate goes through its
			// files in the order of writing at any depth.
			MaxBlobReferenceDepth: 30,
			// Batches are only dropped by trim and delete. Pebble asks for the age once, when it
			// opens, and Compact must reach files of any age; what keeps rewrites rare is the
			// share of garbage, and that Pebble rewrites only while it has no table to compact.
			RewriteMinimumAge:  0,
			TargetGarbageRatio: garbageRatio,
		}
		if reclaiming.Load() > 0 {
			policy.TargetGarbageRatio = 0
		}
		return policy
	}

	// Snappy everywhere: zstd costs more CPU than this server has to give, and payloads that
	// compress well do so with either.
	p.ApplyCompressionSettings(func() pebble.DBCompressionSettings {
		return pebble.UniformDBCompressionSettings(sstable.SnappyCompression)
	})
	for i := range p.Levels {
		l := &p.Levels[i]
		// 10 bits a key, one false positive in a hundred: a writer never seen costs no read.
		l.FilterPolicy = bloom.FilterPolicy(10)
		// Point look-ups of small values want small blocks, index and cache large ones.
		l.BlockSize = 8 << 10
		l.IndexBlockSize = 128 << 10
	}
	return p
}

// spanPolicy cuts tables at the kinds of keys, so that batches and positions, written once and
// never looked up for another key's sake, move to blob files and are not copied from level to
// level, while heads and rows stay where a look-up finds them with one read.
func spanPolicy(start []byte) (pebble.SpanPolicy, []byte, error) {
	// Rows and batches of one prefix are no versions of each other: no value goes to value
	// blocks for having an older neighbour.
	separated := pebble.SpanPolicy{DisableValueSeparationBySuffix: true}
	inPlace := separated
	inPlace.ValueStoragePolicy = pebble.ValueStorageLowReadLatency
	for _, span := range []struct {
		end    string
		policy pebble.SpanPolicy
	}{
		{"b/", inPlace},
		{"b0", separated}, // b/
		{"p/", inPlace},   // h/ and m/
		{"p0", separated}, // p/
	} {
		if string(start) < span.end {
			return span.policy, []byte(span.end), nil
		}
	}
	return inPlace, nil, nil // s/ and w/
}
