package faults

import (
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/process"
)

func TestSIGTERMUnderLoad(t *testing.T) {
	f := newFixture(t)
	n := process.Start(t, f.options)
	ended, _ := f.background(t, n)
	signalled := time.Now()
	n.Signal(t, syscall.SIGTERM)
	exit := n.Wait(t, 10*time.Second)
	took := time.Since(signalled)
	if exit.Code != 0 {
		t.Errorf("exit code %d (signal %v), expected 0", exit.Code, exit.Signal)
	}
	for _, e := range <-ended {
		// A call that was waiting has an answer of the contract; one that came later may
		// find nobody to answer it, and then it has not reached the node.
		switch _, ours := api.FromStatus(e.Err); {
		case e.Err == nil:
			t.Errorf("writer %s was not stopped by the shutdown", e.Writer)
		case ours && e.Definite:
		case api.CodeOf(e.Err) == pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN:
		case e.Sent.Before(signalled):
			t.Errorf("writer %s had a call waiting at the signal, and it ended with %v", e.Writer, e.Err)
		}
	}
	t.Logf("stopped in %v", took.Round(time.Millisecond))
	began := time.Now()
	f.verify(t)
	if start := time.Since(began); start > 5*time.Second {
		t.Errorf("the restart took %v after an orderly end", start)
	}
}

// Nobody to answer: a node without load ends at once.
func TestSIGTERMWithoutLoad(t *testing.T) {
	f := newFixture(t)
	n := process.Start(t, f.options)
	f.load(t, n, 50)
	n.Signal(t, syscall.SIGTERM)
	if exit := n.Wait(t, 5*time.Second); exit.Code != 0 {
		t.Errorf("exit code %d (signal %v), expected 0", exit.Code, exit.Signal)
	}
	f.verify(t)
}
