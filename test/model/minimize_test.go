package model

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// minimize shortens a script that fails: it leaves out ops, then writes, events and single
// words, as long as what is left still fails, until nothing more can go or the time is up.
// Ops are independent lines, so this gets further than shrinking the draws they came from.
func minimize(script []op, budget time.Duration, fails func([]op) bool) []op {
	deadline := time.Now().Add(budget)
	shorter := func(candidate []op) bool {
		if time.Now().After(deadline) || !fails(candidate) {
			return false
		}
		script = candidate
		return true
	}
	for size := len(script) / 2; size > 0; size /= 2 {
		for at := len(script) - size; at >= 0; at-- {
			if at+size <= len(script) {
				shorter(slices.Delete(slices.Clone(script), at, at+size))
			}
		}
	}
	for again := true; again; {
		again = false
		for i := 0; i < len(script); i++ {
			for _, o := range script[i].simpler() {
				candidate := slices.Clone(script)
				if candidate[i] = o; shorter(candidate) {
					again = true
					break
				}
			}
		}
		for i := len(script) - 1; i >= 0; i-- {
			again = shorter(slices.Delete(slices.Clone(script), i, i+1)) || again
		}
	}
	return script
}

// simpler is the ops that have one thing less to say.
func (o op) simpler() []op {
	var out []op
	for i, w := range o.args {
		if w == "confirm" || w == "backward" || strings.Contains(w, "=") {
			out = append(out, op{o.verb, slices.Delete(slices.Clone(o.args), i, i+1), o.writes})
		}
	}
	change := func(i int, w ...[]string) {
		out = append(out, op{o.verb, o.args, slices.Replace(slices.Clone(o.writes), i, i+1, w...)})
	}
	for i, w := range o.writes {
		if len(o.writes) > 1 {
			change(i)
		}
		events := strings.Split(w[1], ",")
		for j, e := range events {
			if len(events) > 1 {
				change(i, slices.Replace(slices.Clone(w), 1, 2, strings.Join(slices.Delete(slices.Clone(events), j, j+1), ",")))
			}
			if k := strings.LastIndex(e, ":"); k > 0 {
				change(i, slices.Replace(slices.Clone(w), 1, 2, strings.Join(slices.Replace(slices.Clone(events), j, j+1, e[:k]), ",")))
			}
		}
		for j := 2; j < len(w); j++ {
			change(i, slices.Delete(slices.Clone(w), j, j+1))
		}
	}
	return out
}

func TestMinimize(t *testing.T) {
	var script []op
	for _, line := range []string{
		"append a A 1,2:e2:3 create loose expect=0 + B 1 create", "read A from=1", "hold", "append b confirm A 7 expect=3", "release", "mark A a",
	} {
		o, err := parseOp(line)
		if err != nil {
			t.Fatal(err)
		}
		script = append(script, o)
	}
	// A bug that shows when event 2 is written and confirm is used later.
	got := minimize(script, time.Minute, func(s []op) bool {
		wrote := slices.IndexFunc(s, func(o op) bool { return o.verb == "append" && strings.Contains(o.String(), "2") })
		return wrote >= 0 && slices.ContainsFunc(s[wrote:], func(o op) bool { return flag(o.args, "confirm") })
	})
	if want := "append a A 2\nappend b confirm A 7"; lines(got) != want {
		t.Errorf("minimized to\n%s\nnot\n%s", lines(got), want)
	}
}

func lines(script []op) string {
	var out []string
	for _, o := range script {
		out = append(out, o.String())
	}
	return strings.Join(out, "\n")
}
