package powerloss

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sort"
)

// cursor walks through the moments of a Disk and knows what is durable at each.
type cursor struct {
	disk    *Disk
	moment  int
	durable map[*inode]*content
	done    map[*inode]int // how many of its operations are durable
}

func newCursor(d *Disk) *cursor {
	return &cursor{disk: d, durable: map[*inode]*content{}, done: map[*inode]int{}}
}

// unit is something pending that a crash leaves in one of several states; the first is as
// if nothing of it was kept, the last as if all was.
type unit struct {
	choices int
	what    string
	keep    func(s *state, choice int)
}

// state is one outcome of a crash while it is being built.
type state struct {
	files map[*inode]content
	names map[int]bool // index in crash.names: kept
}

// crash is what a crash at one moment may leave.
type crash struct {
	moment  int
	durable map[*inode]content // as of the moment; shared, copy before changing
	units   []unit
	names   []pendingName
}

// pendingName is a change of names that has happened by the moment.
type pendingName struct {
	op      *nameOp
	durable bool
}

// advance moves to a later moment and returns what a crash there may leave.
func (cu *cursor) advance(moment int) *crash {
	cu.moment = moment
	cr := &crash{moment: moment, durable: map[*inode]content{}}
	reachable := map[*inode]bool{}
	cu.pendingNames(cr, reachable)
	for _, n := range cu.disk.inodes {
		if !n.dir && reachable[n] {
			cu.pendingData(cr, n)
		}
	}
	return cr
}

// pendingNames adds the units of the directories, and finds the inodes that some outcome
// holds.
func (cu *cursor) pendingNames(cr *crash, reachable map[*inode]bool) {
	type slot struct {
		dir  *inode
		name string
	}
	base := map[slot]*inode{}
	for i := range cu.disk.names {
		op := &cu.disk.names[i]
		if op.start >= cu.moment {
			break
		}
		p := pendingName{op: op, durable: op.flushed < cu.moment}
		for _, ch := range op.changes {
			switch {
			case p.durable:
				base[slot{ch.dir, ch.name}] = ch.to
			case ch.to != nil:
				reachable[ch.to] = true
			}
		}
		if !p.durable {
			at := len(cr.names)
			cr.units = append(cr.units, unit{choices: 2, what: op.what, keep: func(s *state, choice int) { s.names[at] = choice == 1 }})
		}
		cr.names = append(cr.names, p)
	}
	for _, n := range base {
		if n != nil {
			reachable[n] = true
		}
	}
}

// pendingData adds the units of one file: its size, and each page that is not flushed.
func (cu *cursor) pendingData(cr *crash, n *inode) {
	c := cu.durable[n]
	if c == nil {
		c = &content{}
		cu.durable[n] = c
	}
	done := cu.done[n]
	for done < len(n.ops) && n.ops[done].flushed < cu.moment {
		for _, v := range n.ops[done].pages {
			c.set(v)
		}
		c.size = n.ops[done].size
		done++
	}
	cu.done[n] = done
	cr.durable[n] = c.clone()

	// Pages that a truncation cut off whole go with the size, since that is what frees them.
	// The part of a page that it cut off is zeroed in place, which may come before or after.
	type sized struct {
		size    int64
		dropped []int
	}
	sizes := []sized{{size: c.size}}
	var dropped []int
	versions := map[int][]*page{}
	for i := done; i < len(n.ops) && n.ops[i].start < cu.moment; i++ {
		op := &n.ops[i]
		for _, v := range op.pages {
			switch {
			case v.page == nil:
				dropped = append(dropped, v.index)
			case versions[v.index] == nil:
				versions[v.index] = []*page{nil, v.page}
			default:
				versions[v.index] = append(versions[v.index], v.page)
			}
		}
		if op.size != sizes[len(sizes)-1].size {
			sizes = append(sizes, sized{op.size, slices.Clone(dropped)})
		}
	}
	if len(sizes) > 1 {
		cr.units = append(cr.units, unit{choices: len(sizes), what: fmt.Sprintf("size of file %d", n.id), keep: func(s *state, choice int) {
			c := s.files[n]
			c.size = sizes[choice].size
			for _, i := range sizes[choice].dropped {
				c.set(pageVersion{i, nil})
			}
			s.files[n] = c
		}})
	}
	indexes := make([]int, 0, len(versions))
	for i := range versions {
		indexes = append(indexes, i)
	}
	sort.Ints(indexes)
	for _, i := range indexes {
		list := versions[i]
		cr.units = append(cr.units, unit{choices: len(list), what: fmt.Sprintf("page %d of file %d", i, n.id), keep: func(s *state, choice int) {
			if choice == 0 {
				return // as the size has left it
			}
			c := s.files[n]
			c.set(pageVersion{i, list[choice]})
			s.files[n] = c
		}})
	}
}

// outcomes is how many outcomes the crash has, at most limit+1.
func (cr *crash) outcomes(limit int) int {
	n := 1
	for _, u := range cr.units {
		if n *= u.choices; n > limit {
			return limit + 1
		}
	}
	return n
}

// nth is the choices of outcome i, counted through all; 0 keeps nothing.
func (cr *crash) nth(i int) []int {
	out := make([]int, len(cr.units))
	for j, u := range cr.units {
		out[j] = i % u.choices
		i /= u.choices
	}
	return out
}

// all keeps everything.
func (cr *crash) all() []int {
	out := make([]int, len(cr.units))
	for j, u := range cr.units {
		out[j] = u.choices - 1
	}
	return out
}

// sample is a seeded outcome: of each unit nothing, everything or something between, with
// a bias drawn once per outcome, so that "nearly all" and "nearly nothing" come up too.
func (cr *crash) sample(rng *rand.Rand) []int {
	out := make([]int, len(cr.units))
	bias := []float64{0.05, 0.5, 0.95}[rng.IntN(3)]
	for j, u := range cr.units {
		switch {
		case rng.Float64() < bias:
			out[j] = u.choices - 1
		case u.choices > 2 && rng.IntN(2) == 0:
			out[j] = rng.IntN(u.choices)
		}
	}
	return out
}

// file is one file or directory of a rebuilt tree.
type file struct {
	path    string
	dir     bool
	content content
}

// build makes the tree of one outcome, directories before what they hold.
func (cr *crash) build(root *inode, choices []int) []file {
	s := &state{files: make(map[*inode]content, len(cr.durable)), names: map[int]bool{}}
	for n, c := range cr.durable {
		s.files[n] = c.clone()
	}
	for j, u := range cr.units {
		u.keep(s, choices[j])
	}
	entries := map[*inode]map[string]*inode{}
	for i, p := range cr.names {
		if !p.durable && !s.names[i] {
			continue
		}
		for _, ch := range p.op.changes {
			if entries[ch.dir] == nil {
				entries[ch.dir] = map[string]*inode{}
			}
			if ch.to == nil {
				delete(entries[ch.dir], ch.name)
			} else {
				entries[ch.dir][ch.name] = ch.to
			}
		}
	}
	var out []file
	var walk func(d *inode, path string)
	walk = func(d *inode, path string) {
		names := make([]string, 0, len(entries[d]))
		for name := range entries[d] {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			n, p := entries[d][name], filepath.Join(path, name)
			out = append(out, file{path: p, dir: n.dir, content: s.files[n]})
			if n.dir {
				walk(n, p)
			}
		}
	}
	walk(root, "")
	return out
}
