package replication

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestRaftsFormattedValuesAreFormatted(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	type server struct{ ID string }
	l := newRaftLogger(zap.New(core)).With("term", hclog.Fmt("%03d", 7))
	l.Warn("initial configuration", "index", 1, "servers", hclog.Fmt("%+v", []server{{"n1"}}), "left over")
	found := fmt.Sprint(len(logs.All()))
	for _, e := range logs.All() {
		if want := map[string]any{"term": "007", "index": int64(1), "servers": "[{ID:n1}]"}; !reflect.DeepEqual(e.ContextMap(), want) {
			t.Errorf("found %v; want %v", e.ContextMap(), want)
		}
	}
	if found != "1" {
		t.Errorf("%s lines; want 1", found)
	}
}

// A node that is down for a night would otherwise fill the log of those that are up.
func TestRaftsRepeatedLinesAreThinnedOut(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	l := newRaftLogger(zap.New(core))
	for range 50 {
		l.Error("failed to heartbeat to", "peer", "n3")
	}
	l.Warn("something else")
	if n := logs.FilterMessage("failed to heartbeat to").Len(); n != raftLogFirst {
		t.Errorf("%d lines of 50 were written, want %d", n, raftLogFirst)
	}
	if n := logs.FilterMessage("something else").Len(); n != 1 {
		t.Errorf("another line was written %d times", n)
	}
}
