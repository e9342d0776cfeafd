package leader

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const (
	// patience is how long Do looks for a leader, if there are nodes. An election takes a
	// second or two; one that takes longer waits for a majority.
	patience = 10 * time.Second
	// maxHops bounds how often Do goes where a node says that the leader is without a pause.
	// More happens only when nodes name each other.
	maxHops = 5

	firstPause = 50 * time.Millisecond
	maxPause   = 500 * time.Millisecond
)

// NotTakenError is returned for a call that no node took: nothing was done. Its text has one
// line for each node, and what it said; a 2011 or 2015 among them is found in it.
type NotTakenError struct{ errs []error }

func (e *NotTakenError) Error() string   { return errors.Join(e.errs...).Error() }
func (e *NotTakenError) Unwrap() []error { return e.errs }

// GRPCStatus is that of the first node that answered; UNAVAILABLE if none did.
func (e *NotTakenError) GRPCStatus() *status.Status {
	for _, err := range e.errs {
		var refused *refusedError
		if errors.As(err, &refused) {
			return status.Convert(refused.err)
		}
	}
	return status.New(codes.Unavailable, e.Error())
}

// refusedError is what the node at an address answered.
type refusedError struct {
	address string
	err     error
}

func (e *refusedError) Error() string {
	text := e.err.Error()
	if refusal, ok := api.FromStatus(e.err); ok {
		text = refusal.Error()
	}
	return e.address + ": " + text
}

func (e *refusedError) Unwrap() error { return e.err }

// Do runs call with the connection to one node, and again with another one, or later, as
// long as the answer is a definite "not here" or "not yet" (2011, 2015): until a node takes
// it, ctx ends, or no leader is found for some seconds. Any other error is the result, since
// it leaves open what became of the call. Call may so be run several times.
func (c *Conn) Do(ctx context.Context, call func(context.Context, grpc.ClientConnInterface) error) error {
	var heard, lost NotTakenError
	giveUp := time.Now().Add(patience)
	hops, pause := 0, firstPause
	for {
		n, err := c.find(ctx)
		if err != nil && len(heard.errs) == 0 {
			return err // nobody is there, which waiting does not change
		}
		wait := pause
		lost.errs = nil
		if err != nil && ctx.Err() == nil { // else it says no more than that the time is up
			lost.errs = []error{err}
		}
		if err == nil {
			began := time.Now()
			err = call(ctx, n.conn)
			giveUp = giveUp.Add(time.Since(began)) // that was no time of looking
			switch api.CodeOf(err) {
			case pb.ErrorCode_ERROR_CODE_NOT_LEADER:
				heard.note(n.address, err)
				c.learn(n, err)
				if to := leaderOf(err); to != "" && to != n.address && hops < maxHops && ctx.Err() == nil {
					hops++
					continue
				}
			case pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY:
				heard.note(n.address, err)
				if e, ok := api.FromStatus(err); ok {
					wait = max(wait, min(e.RetryAfter, maxPause))
				}
			default:
				if err != nil {
					c.learn(n, err)
				}
				return err
			}
		}
		hops, pause = 0, min(2*pause, maxPause)
		if time.Now().Add(wait).After(giveUp) {
			return &NotTakenError{errs: append(heard.errs, lost.errs...)}
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return &NotTakenError{errs: append(heard.errs, lost.errs...)}
		}
	}
}

// note keeps the newest answer of each node.
func (e *NotTakenError) note(address string, err error) {
	said := &refusedError{address, err}
	for i := range e.errs {
		if old, ok := e.errs[i].(*refusedError); ok && old.address == address {
			e.errs = slices.Delete(e.errs, i, i+1)
			break
		}
	}
	e.errs = append(e.errs, said)
}

// FindLeader makes calls go to the node that leads, if one is found as by Do. It asks for a
// read that only the leader answers.
func (c *Conn) FindLeader(ctx context.Context) error {
	return c.Do(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		_, err := pb.NewEventStoreServiceClient(conn).ListOrgs(ctx, &pb.ListOrgsRequest{PageSize: 1, Consistency: pb.Consistency_CONSISTENCY_LEADER})
		return err
	})
}
