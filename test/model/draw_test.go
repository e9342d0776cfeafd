package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Few names, some of them prefixes of others, so that writers collide and key encodings are
// told apart.
var (
	aggregates = []string{"A", "AA", "B"}
	writers    = []string{"a", "aa", "b"}
)

// maxFlight bounds what a hold collects.
const maxFlight = 8

// drawer draws ops that are likely to mean something in the world's present state.
type drawer struct {
	w    *world
	past []op // the appends made so far, refused ones too
	// restarts are drawn once in so many ops; 0 = never.
	restarts int
	holds    bool
}

// next is a generator of one op.
func (d *drawer) next() *rapid.Generator[op] {
	return rapid.Custom(func(t *rapid.T) op {
		// rapid shrinks towards 0: the plainest comes first.
		switch n := below(t, 100); {
		case len(d.w.m.flight) >= maxFlight && n >= 65:
			return op{verb: "release"}
		case n < 40:
			return d.append(t)
		case n < 65 && len(d.past) > 0:
			return d.resend(t)
		case n < 73 && !d.w.holding:
			return d.change(t)
		case n < 87 || d.restarts == 0 && !d.holds:
			return d.read(t)
		case d.w.holding && n < 94:
			return d.append(t)
		case d.restarts > 0 && !d.w.holding && below(t, 2*d.restarts) == 0:
			return op{verb: "compact"}
		case d.restarts > 0 && below(t, d.restarts) == 0:
			return op{verb: pick(t, "restart", "crash", "rebuild"), args: some(pick(t, "", "cache=0", "cache=1", "cache=2"))}
		case d.w.holding && len(d.w.calls) > 1 && !d.w.waits() && chance(t, 40):
			return op{verb: "lose"}
		case d.w.holding:
			return op{verb: "release"}
		case d.holds:
			return op{verb: "hold"}
		}
		return d.read(t)
	})
}

// below draws from 0..n-1, each as likely as the other: rapid's own ranges prefer their
// ends, which would leave the rarer kinds of ops undrawn.
func below(t *rapid.T, n int) int {
	bits := 0
	for range 10 {
		bits <<= 1
		if rapid.Bool().Draw(t, "bit") {
			bits++
		}
	}
	return bits * n >> 10
}

func pick[V any](t *rapid.T, of ...V) V { return of[below(t, len(of))] }

// chance is true in n of 100 draws, and false when rapid has shrunk it.
func chance(t *rapid.T, n int) bool { return below(t, 100) >= 100-n }

// between draws from lo..hi, both included.
func between(t *rapid.T, lo, hi uint64) uint64 { return lo + uint64(below(t, int(hi-lo)+1)) }

func some(words ...string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return w == "" })
}

func (d *drawer) append(t *rapid.T) op {
	o := op{verb: "append", args: []string{pick(t, writers...)}}
	confirm := chance(t, 15)
	if confirm {
		o.args = append(o.args, "confirm")
	}
	first := below(t, len(aggregates))
	for i := range pick(t, 1, 1, 1, 1, 1, 2, 2, 3) {
		o.writes = append(o.writes, d.write(t, aggregates[(first+i)%len(aggregates)], o.args[0], confirm))
	}
	return o
}

func (d *drawer) write(t *rapid.T, id, client string, confirm bool) []string {
	s := d.standing(id, client)
	loose := !confirm && chance(t, 25)
	top := max(s.mark, s.inFlightMark)
	lo := top + 1
	switch n := below(t, 20); {
	case n >= 18:
		lo = top + 3
	case n >= 14:
		lo = max(top, 1)
	case n >= 10:
		lo = between(t, 1, top+1)
	}
	var events []string
	for seq, more := lo, true; more; more = len(events) < 4 && chance(t, 30) {
		events = append(events, d.event(t, seq, confirm))
		if seq++; chance(t, 10) {
			seq++
		}
		if loose && chance(t, 30) {
			seq = between(t, 1, top+2)
		}
	}
	words := []string{id, strings.Join(events, ",")}
	if !chance(t, 15) {
		words = append(words, "create")
	}
	if loose {
		words = append(words, "loose")
	}
	if chance(t, 55) {
		words = append(words, fmt.Sprintf("expect=%d", d.guard(t, s)))
	}
	if !loose && chance(t, 20) {
		words = append(words, fmt.Sprintf("prev=%d", pick(t, top, s.mark, lo-1, 0)))
	}
	return words
}

// guard is mostly the version as of A, else one inside or outside of the in-flight range.
func (d *drawer) guard(t *rapid.T, s *standing) uint64 {
	a := s.committed + s.ahead
	if chance(t, 35) {
		return pick(t, s.committed, a-min(a, 1), 0, a+1, s.committed-min(s.committed, 1), a/2)
	}
	return a
}

func (*drawer) event(t *rapid.T, seq uint64, confirm bool) string {
	out := strconv.FormatUint(seq, 10)
	switch n := below(t, 20); {
	case n >= 19 && !confirm:
		return out + ":"
	case n >= 18:
		return out + ":shared"
	case n >= 12:
		return fmt.Sprintf("%s:e%s:%d", out, out, 1+below(t, len(variants)-2))
	}
	return out
}

func (d *drawer) standing(id, client string) *standing {
	req := &pb.AppendRequest{ClientId: client, Writes: []*pb.Write{{Aggregate: d.w.key(id), Events: []*pb.NewEvent{{ClientSeq: 1}}}}}
	return d.w.m.standing(req, 0)
}

// resend repeats an earlier append, the last ones above all: as it was, or changed in one
// way that the contract tells apart.
func (d *drawer) resend(t *rapid.T) op {
	back := below(t, min(len(d.past)-1, 9)+1)
	was := d.past[len(d.past)-1-back]
	o := op{verb: was.verb, args: slices.Clone(was.args)}
	for _, w := range was.writes {
		o.writes = append(o.writes, slices.Clone(w))
	}
	if !flag(o.args, "confirm") && chance(t, 50) {
		// Flags are not compared: what was recorded loosely can be confirmed as well.
		o.args = append(o.args, "confirm")
		for i, w := range o.writes {
			o.writes[i] = slices.DeleteFunc(w, func(s string) bool { return s == "loose" })
		}
	}
	i := below(t, len(o.writes))
	w := o.writes[i]
	events := strings.Split(w[1], ",")
	j := below(t, len(events))
	seq, _, _ := strings.Cut(events[j], ":")
	switch below(t, 16) {
	default:
		return o
	case 4:
		o.writes[i] = slices.DeleteFunc(w, func(s string) bool { return strings.HasPrefix(s, "expect=") })
		return o
	case 5, 6:
		w = slices.DeleteFunc(w, func(s string) bool { return strings.HasPrefix(s, "expect=") })
		o.writes[i] = append(w, fmt.Sprintf("expect=%d", d.guard(t, d.standing(w[0], o.args[0]))))
		return o
	case 7:
		events[j] = fmt.Sprintf("%s:e%s:%d", seq, seq, below(t, len(variants)-1))
	case 8:
		events[j] = seq + ":changed"
	case 9:
		events = slices.Delete(events, 0, min(1, len(events)-1))
	case 10:
		events = events[:max(1, len(events)-1)]
	case 11:
		last, _, _ := strings.Cut(events[len(events)-1], ":")
		n, _ := strconv.ParseUint(last, 10, 64)
		events = append(events, strconv.FormatUint(n+1, 10))
	case 12: // other writes beside the same one
		if len(o.writes) > 1 && chance(t, 50) {
			o.writes = slices.Delete(o.writes, i, i+1)
		} else {
			o.writes = append(o.writes, d.write(t, pick(t, aggregates...), o.args[0], flag(o.args, "confirm")))
		}
		return o
	case 13:
		if len(o.writes) > 1 {
			slices.Reverse(o.writes)
		} else {
			o.args[0] = pick(t, writers...)
		}
		return o
	case 14:
		slices.Reverse(events)
	case 15: // recorded again, enforced or not: CONFIRM must still find the first
		o.args = o.args[:1]
		for i, w := range o.writes {
			w = slices.DeleteFunc(w, func(s string) bool {
				return s == "loose" || strings.HasPrefix(s, "prev=") || strings.HasPrefix(s, "expect=")
			})
			o.writes[i] = append(w, "loose")
		}
		return o
	}
	w[1] = strings.Join(events, ",")
	return o
}

// change is a trim or a delete.
func (d *drawer) change(t *rapid.T) op {
	id := pick(t, append(slices.Clone(aggregates), "missing")...)
	guard := func(id string) string {
		if chance(t, 30) {
			return fmt.Sprintf("expect=%d", d.guard(t, d.standing(id, "a")))
		}
		return ""
	}
	if chance(t, 55) {
		keep := between(t, 0, d.standing(id, "a").committed+1)
		return op{verb: "trim", args: some(id, strconv.FormatUint(keep, 10), guard(id))}
	}
	o := op{verb: "delete"}
	first := below(t, len(aggregates))
	for i := range pick(t, 1, 1, 1, 2) {
		if i > 0 || chance(t, 90) {
			id = aggregates[(first+i)%len(aggregates)]
		}
		words := some(id, guard(id))
		if chance(t, 90) {
			words = append(words, "recreatable")
			words = append(words, some(pick(t, "", "restart"))...)
		}
		if chance(t, 25) {
			words = append(words, "forget")
		}
		o.writes = append(o.writes, words)
	}
	return o
}

func (d *drawer) read(t *rapid.T) op {
	id := pick(t, append(slices.Clone(aggregates), "missing")...)
	client := pick(t, append(slices.Clone(writers), "nobody")...)
	level := some(pick(t, "", "consistency=leader", "consistency=linearizable", "consistency=any"))
	s := d.standing(id, client)
	switch below(t, 7) {
	case 6:
		return d.readAll(t, level)
	case 0:
		return op{verb: "mark", args: append([]string{id, client}, level...)}
	case 1:
		return op{verb: "aggregate", args: append([]string{id}, level...)}
	case 2:
		return op{verb: "marks", args: append(some(id, pick(t, "", "page=1", "page=2")), level...)}
	case 3:
		seq := between(t, 1, s.mark+1)
		return op{verb: "find", args: append([]string{id, client, strconv.FormatUint(seq, 10)}, level...)}
	}
	o := op{verb: "read", args: append([]string{id}, level...)}
	if chance(t, 40) {
		o.args = append(o.args, "backward")
	}
	version := func() uint64 { return between(t, 1, s.committed+2) }
	for _, arg := range []struct {
		likely int
		text   func() string
	}{
		{40, func() string { return fmt.Sprintf("from=%d", version()) }},
		{25, func() string { return fmt.Sprintf("to=%d", version()) }},
		{30, func() string { return fmt.Sprintf("limit=%d", between(t, 1, 4)) }},
		{10, func() string { return "types=" + pick(t, "Placed", "Shipped", "Placed,Shipped", "None") }},
		{10, func() string { return "clients=" + pick(t, writers...) }},
		{10, func() string { return "exclude=" + pick(t, writers...) }},
		{10, func() string { return "ids=" + pick(t, "e1,e3", "shared", "e2") }},
		{10, func() string { return fmt.Sprintf("seq-from=%d", between(t, 1, 8)) }},
		{10, func() string { return fmt.Sprintf("seq-to=%d", between(t, 1, 8)) }},
		{10, func() string { return fmt.Sprintf("committed-from=%d", version()) }},
		{10, func() string { return fmt.Sprintf("committed-to=%d", version()) }},
		{5, func() string { return "occurred-from=0" }},
		{5, func() string { return "occurred-to=1700000000" }},
		{10, func() string { return fmt.Sprintf("min=%d", between(t, 1, d.w.m.position+1)) }},
	} {
		if chance(t, arg.likely) {
			o.args = append(o.args, arg.text())
		}
	}
	return o
}

// readAll reads the log.
func (d *drawer) readAll(t *rapid.T, level []string) op {
	o := op{verb: "readall", args: level}
	last := d.w.m.position - d.w.base
	for _, arg := range []struct {
		likely int
		text   func() string
	}{
		{40, func() string { return "backward" }},
		{50, func() string { return fmt.Sprintf("from=%d", between(t, 1, last+2)) }},
		{40, func() string { return fmt.Sprintf("limit=%d", between(t, 1, 6)) }},
		{10, func() string { return "types=" + pick(t, "Placed", "Shipped", "None") }},
		{10, func() string { return "clients=" + pick(t, writers...) }},
		{10, func() string { return "exclude=" + pick(t, writers...) }},
		{10, func() string { return "ids=" + pick(t, "e1,e3", "e2") }},
		{10, func() string { return fmt.Sprintf("seq-from=%d", between(t, 1, 8)) }},
	} {
		if chance(t, arg.likely) {
			o.args = append(o.args, arg.text())
		}
	}
	return o
}

// made remembers an append for later resends.
func (d *drawer) made(o op) {
	if o.verb == "append" {
		d.past = append(d.past, o)
	}
}

// outcome names what the model will tell an append, without making it.
func outcome(m *Model, req *pb.AppendRequest) string {
	flight := slices.Clone(m.flight)
	a := m.Append(proto.Clone(req).(*pb.AppendRequest))
	m.flight = flight
	switch {
	case a.Failure != nil:
		out := strconv.Itoa(int(a.Failure.GetCode()))
		for _, f := range []struct {
			name string
			is   bool
		}{
			{" holder", a.Failure.GetHolder() != nil}, {" others", a.Failure.GetHolder().GetOthers()},
			{" differs", a.Failure.GetHolder().GetContentDiffers()}, {" in_flight_version", a.Failure.InFlightVersion != nil},
		} {
			if f.is {
				out += f.name
			}
		}
		return out
	case a.Codes != nil:
		return strconv.Itoa(int(a.Codes[0]))
	case a.Results != nil:
		return "confirmed"
	case a.Wait != nil:
		return "waits"
	}
	return "admitted"
}
