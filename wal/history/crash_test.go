package history

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

var (
	crashSeeds = flag.Int("history.crash-seeds", 2, "workloads of TestPowerLoss")
	crashSeed  = flag.Uint64("history.crash-seed", 1, "seed of the first one")
)

// TestPowerLoss is what decision 2 rests on: whatever of the unsynced data a power loss
// takes, the store opens as the state at exactly one applied index, between the last one that
// a Flush has acknowledged and the last one committed. Losses strike before random operations
// of Pebble's on the file system, in flushes, compactions and Open itself, and each workload
// goes on from the last one.
func TestPowerLoss(t *testing.T) {
	for i := range uint64(*crashSeeds) {
		seed := *crashSeed + i
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			powerLosses(t, seed)
		})
	}
}

func powerLosses(t *testing.T, seed uint64) {
	w := newWorkload(seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	disk := vfs.NewCrashableMem()
	indexes := map[uint64]bool{} // recovered ones
	for range 2 {
		p := &plug{disk: disk, w: w, rng: rng}
		p.run(t)
		var applied Applied
		for _, c := range p.crashes {
			// Opening changes the disk, so the next round goes on from where this one ended.
			applied = c.recover(t, w)
			indexes[applied.Index] = true
			disk = c.disk
		}
		w = w.rewind(t, applied)
	}
	if len(indexes) < 5 {
		t.Errorf("only %d different indexes were recovered; the losses come at the wrong time", len(indexes))
	}
}

// crash is a disk as a power loss left it, and what it may hold.
type crash struct {
	disk        *vfs.MemFS
	durable     uint64 // the last index that Flush acknowledged
	maybe       uint64 // the last index whose commit had begun
	description string
}

// recover opens the disk, compares it with the model, and returns what the store is at.
func (c *crash) recover(t *testing.T, w *workload) Applied {
	t.Helper()
	s, err := Open(crashOptions(c.disk))
	if err != nil {
		t.Fatalf("%s: %v", c.description, err)
	}
	v := s.View()
	a := v.Applied()
	if a.Index < c.durable || a.Index > c.maybe {
		t.Errorf("%s: recovered index %d; %d was flushed, %d the last committed", c.description, a.Index, c.durable, c.maybe)
	}
	if err := w.check(v); err != nil {
		t.Fatalf("%s: %v", c.description, err)
	}
	v.Release()
	if err := s.Close(); err != nil {
		t.Fatalf("%s: %v", c.description, err)
	}
	return a
}

func crashOptions(fs vfs.FS) Options {
	return Options{Dir: "data/history", FS: fs, MemTableBytes: MinMemTableBytes, BlockCacheBytes: 1 << 20, tune: small}
}

// plug runs a workload on a disk and pulls the plug at random operations.
type plug struct {
	disk *vfs.MemFS
	w    *workload
	rng  *rand.Rand

	mu      sync.Mutex
	next    int // operations until the next loss
	every   int // at most so many operations apart
	most    int // losses in all; 0 = any number
	durable uint64
	began   uint64
	crashes []*crash
}

// pull is called before every operation that changes the file system.
func (p *plug) pull(op errorfs.Op) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next--; p.next > 0 || p.most > 0 && len(p.crashes) == p.most {
		return
	}
	p.next = 1 + p.rng.IntN(p.every)
	unsynced := [...]int{0, 0, 50, 100}[p.rng.IntN(4)]
	p.crashes = append(p.crashes, &crash{
		disk:        p.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unsynced, RNG: p.rng}),
		durable:     p.durable,
		maybe:       p.began,
		description: fmt.Sprintf("loss %d, before operation %d of %s, %d%% of the unsynced kept", len(p.crashes), op.Kind, op.Path, unsynced),
	})
}

// fs is the disk behind the plug.
func (p *plug) fs() vfs.FS {
	return errorfs.Wrap(p.disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			p.pull(op)
		}
		return nil
	}))
}

func (p *plug) run(t *testing.T) {
	start := p.w.applied.Index
	p.durable, p.began = start, start
	p.every = 120
	s, err := Open(crashOptions(p.fs()))
	if err != nil {
		t.Fatal(err)
	}
	for range 60 {
		p.commit(t, s)
		if p.w.rng.IntN(20) == 0 {
			p.flush(t, s)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func (p *plug) commit(t *testing.T, s *Store) {
	t.Helper()
	b := s.NewBatch()
	for range 1 + p.w.rng.IntN(4) {
		p.w.entry(b)
	}
	p.mu.Lock()
	p.began = p.w.applied.Index
	p.mu.Unlock()
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
}

func (p *plug) flush(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.durable = p.w.applied.Index
	p.mu.Unlock()
}

// TestPowerLossInBlobRewrite: blob files are rewritten once enough of what they hold is
// referred to no more, and no loss in the middle of that, or while what it has replaced is
// removed, loses what still is.
//
// The plug is only pulled then. A rewrite waits until nothing else is to be compacted, which on
// a busy machine takes hundreds of rounds: losses all along made this test as slow as that.
func TestPowerLossInBlobRewrite(t *testing.T) {
	p := &plug{disk: vfs.NewCrashableMem(), w: newWorkload(11), rng: rand.New(rand.NewPCG(11, 2)), next: math.MaxInt, most: 40}
	rewritten := make(chan struct{}, 1)
	o := crashOptions(p.fs())
	o.tune = func(po *pebble.Options) {
		small(po)
		// Compactions keep the references that they find, so that files fill with garbage.
		policy := po.Experimental.ValueSeparationPolicy()
		policy.MaxBlobReferenceDepth = math.MaxInt32
		policy.TargetGarbageRatio = 0.001
		po.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy { return policy }
		po.AddEventListener(pebble.EventListener{
			BlobFileRewriteBegin: func(pebble.BlobFileRewriteInfo) { p.set(1, 25) },
			BlobFileRewriteEnd: func(info pebble.BlobFileRewriteInfo) {
				if info.Err != nil {
					t.Error(info.Err)
				}
				select {
				case rewritten <- struct{}{}:
				default:
				}
			},
		})
	}
	s := open(t, o)
	for range 40 {
		p.commit(t, s)
	}
	p.flush(t, s)
	for n, quiet, rounds := 0, 0, 0; n < 4; rounds++ {
		if rounds == 2000 {
			t.Fatalf("%d blob files were rewritten in %d rounds", n, rounds)
		}
		// Each time round, more of what the blob files hold is overwritten.
		for range 4 {
			p.commit(t, s)
		}
		p.flush(t, s)
		if err := s.db.Compact(t.Context(), []byte("a"), []byte("z"), false); err != nil {
			t.Fatal(err)
		}
		select {
		case <-rewritten:
			n++
			quiet = 0
		default:
			if quiet++; quiet == 2 {
				p.set(math.MaxInt, 1)
			}
		}
	}
	crashes := p.set(math.MaxInt, 1)
	if len(crashes) < 20 {
		t.Errorf("%d losses in four rewrites: they come at the wrong time", len(crashes))
	}
	for _, c := range crashes {
		c.recover(t, p.w)
	}
}

// set says when the plug is pulled next and how often from then on, and returns what was
// recorded so far.
func (p *plug) set(next, every int) []*crash {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.every = next, every
	return p.crashes
}
