package powerloss

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"unsafe"
)

// exhaustive is the number of outcomes of one crash up to which all are tried: the subsets
// of eight operations that were not flushed.
const exhaustive = 1 << 8

// Options say how much of a run to explore.
type Options struct {
	Seed uint64
	// Budget is about how many outcomes to try; 0 = all. With fewer than there are, a
	// seeded part is tried.
	Budget int
	// Samples is how many outcomes are tried of a crash that has more than 256.
	Samples int
	// Scratch is where directories are rebuilt; each is removed after its check.
	Scratch string
	// Keep is where a directory that failed its check is rebuilt and left; "" = nowhere.
	Keep string
	// Workers check at the same time; 0 = one per processor.
	Workers int
}

// Crash is one rebuilt directory.
type Crash struct {
	// Dir is the rebuilt directory. The check may change it.
	Dir string
	// Lines is what the program had begun to print by then.
	Lines []string
	// Name tells which crash it is, for a message.
	Name string
}

// Stats says what an exploration covered.
type Stats struct {
	Moments   int // at which another state is possible than before
	Outcomes  int // of the moments that were picked, samples counted as such
	Tried     int // rebuilt and checked
	Repeated  int // not rebuilt, because the same directory had been checked with the same lines
	FlushOnly int // tried outcomes that keep nothing that was not flushed
}

func (s Stats) String() string {
	return fmt.Sprintf("%d moments, %d outcomes, %d tried (%d with only what was flushed), %d repeated",
		s.Moments, s.Outcomes, s.Tried, s.FlushOnly, s.Repeated)
}

// job is one directory to rebuild and check.
type job struct {
	number int
	lines  []Line
	files  []file
	name   string
}

// Explore rebuilds directories and checks each. It returns the first failure, in no
// particular order; its text says how to see that crash again.
func Explore(ctx context.Context, d *Disk, o Options, check func(Crash) error) (Stats, error) {
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Samples == 0 {
		o.Samples = 64
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	jobs := make(chan job)
	var workers sync.WaitGroup
	// The workers end when jobs is closed, at the latest after the check in hand.
	for range o.Workers {
		workers.Go(func() {
			for j := range jobs {
				if err := j.run(o, check); err != nil {
					cancel(err)
				}
			}
		})
	}
	stats := generate(ctx, d, o, jobs)
	close(jobs)
	workers.Wait()
	return stats, context.Cause(ctx)
}

// generate hands out jobs until there are no more or ctx ends.
func generate(ctx context.Context, d *Disk, o Options, jobs chan<- job) Stats {
	rng := rand.New(rand.NewPCG(o.Seed, 0))
	moments, each := o.pick(d.moments, rng)
	stats := Stats{Moments: len(d.moments)}
	seed := maphash.MakeSeed()
	seen := map[uint64]bool{}
	cu := newCursor(d)
	lines := 0
	for _, m := range moments {
		cr := cu.advance(m)
		for lines < len(d.Lines) && d.Lines[lines].At < m {
			lines++
		}
		all := cr.outcomesToTry(o.Samples, rng)
		stats.Outcomes += len(all)
		for i, choices := range thin(all, each, rng) {
			files := cr.build(d.root, choices)
			h := identity(seed, files, lines)
			if seen[h] {
				stats.Repeated++
				continue
			}
			seen[h] = true
			j := job{number: stats.Tried, lines: d.Lines[:lines], files: files, name: describe(cr, choices, o)}
			select {
			case jobs <- j:
				stats.Tried++
				if i == 0 {
					stats.FlushOnly++
				}
			case <-ctx.Done():
				return stats
			}
		}
	}
	return stats
}

// pick chooses the moments to try, and how many outcomes of each at most. With a budget, all
// moments come before several outcomes of each: most failures show at the two extremes of
// the right moment.
func (o *Options) pick(moments []int, rng *rand.Rand) (picked []int, each int) {
	if o.Budget == 0 {
		return moments, 1 << 30
	}
	n := min(len(moments), max(1, o.Budget/4))
	for i, m := range moments {
		if left := len(moments) - i; rng.IntN(left) < n-len(picked) {
			picked = append(picked, m)
		}
	}
	return picked, max(2, o.Budget/n)
}

// outcomesToTry is all outcomes of a crash, or a seeded part if they are too many. The first
// keeps nothing that was not flushed, the last keeps everything.
func (cr *crash) outcomesToTry(samples int, rng *rand.Rand) [][]int {
	total := cr.outcomes(exhaustive)
	n := total
	if total > exhaustive {
		n = samples
	}
	out := make([][]int, n)
	for i := range out {
		switch {
		case i == 0:
			out[i] = cr.nth(0)
		case i == n-1:
			out[i] = cr.all()
		case total > exhaustive:
			out[i] = cr.sample(rng)
		default:
			out[i] = cr.nth(i)
		}
	}
	return out
}

// thin keeps the first, the last and a seeded part of the others.
func thin(all [][]int, most int, rng *rand.Rand) [][]int {
	if len(all) <= most {
		return all
	}
	others := all[1 : len(all)-1]
	rng.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	out := append([][]int{all[0]}, others[:most-2]...)
	return append(out, all[len(all)-1])
}

// identity tells trees apart. Pages are never changed, so their addresses stand for them.
func identity(seed maphash.Seed, files []file, lines int) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	num := func(n uint64) {
		var b [8]byte
		for i := range b {
			b[i] = byte(n >> (8 * i))
		}
		h.Write(b[:])
	}
	num(uint64(lines))
	for _, f := range files {
		h.WriteString(f.path)
		num(uint64(f.content.size))
		for i := range int((f.content.size + pageSize - 1) / pageSize) {
			num(uint64(uintptr(unsafe.Pointer(f.content.at(i)))))
		}
	}
	return h.Sum64()
}

func describe(cr *crash, choices []int, o Options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "moment %d, seed %d; kept of what was not flushed:", cr.moment, o.Seed)
	if len(choices) == 0 {
		b.WriteString(" nothing was pending")
	}
	for j, u := range cr.units {
		if j == 40 {
			fmt.Fprintf(&b, " and %d more", len(cr.units)-j)
			break
		}
		fmt.Fprintf(&b, " [%s: %d of %d]", u.what, choices[j], u.choices-1)
	}
	return b.String()
}

// run rebuilds the directory, checks it and removes it.
func (j job) run(o Options, check func(Crash) error) (err error) {
	base := "crash-" + strconv.Itoa(j.number)
	dir := filepath.Join(o.Scratch, base)
	defer func() {
		if rerr := os.RemoveAll(dir); err == nil && rerr != nil {
			err = rerr
		}
	}()
	if err := writeTree(dir, j.files); err != nil {
		return err
	}
	c := Crash{Dir: dir, Name: j.name, Lines: make([]string, len(j.lines))}
	for i, l := range j.lines {
		c.Lines[i] = l.Text
	}
	if err := guarded(check, c); err != nil {
		err = fmt.Errorf("after a power loss (%s): %w", j.name, err)
		if o.Keep != "" {
			err = errors.Join(err, writeTree(filepath.Join(o.Keep, base), j.files))
		}
		return err
	}
	return nil
}

// guarded turns a panic of the code that opens the directory into a failure of the check.
func guarded(check func(Crash) error, c Crash) (err error) {
	// A file that is shorter than its mapping faults instead of panicking.
	debug.SetPanicOnFault(true)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return check(c)
}

// writeTree makes the directory and all in it.
func writeTree(dir string, files []file) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		p := filepath.Join(dir, f.path)
		if f.dir {
			if err := os.Mkdir(p, 0o755); err != nil {
				return err
			}
		} else if err := os.WriteFile(p, f.content.bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// End rebuilds the directory as it was at the end of the run, with everything kept. It
// must be equal to the real one, or the model is wrong.
func (d *Disk) End(dir string) error {
	cr := newCursor(d).advance(never)
	return writeTree(dir, cr.build(d.root, cr.all()))
}
