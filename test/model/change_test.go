package model

import (
	"context"
	"errors"
	"strconv"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// errHeld: the model decides what is in flight in the order of admission, and keeps no trims
// and deletes there.
var errHeld = errors.New("release first")

func (w *world) trim(ctx context.Context, o op) (string, error) {
	if w.holding {
		return "", errHeld
	}
	keep, err := strconv.ParseUint(o.args[1], 10, 64)
	if err != nil {
		return "", err
	}
	req := &pb.TrimRequest{Aggregate: w.key(o.args[0]), KeepFromVersion: keep, ExpectedVersion: optional(o.args, "expect")}
	c := w.m.Trim(req)
	return point(ctx, w, c.Trimmed, c.refusal(), req, pb.EventStoreServiceClient.Trim)
}

func (w *world) delete(ctx context.Context, o op) (string, error) {
	if w.holding {
		return "", errHeld
	}
	req := &pb.DeleteRequest{}
	for _, words := range o.writes {
		req.Deletes = append(req.Deletes, &pb.AggregateDelete{
			Aggregate: w.key(words[0]), ExpectedVersion: optional(words, "expect"),
			AllowRecreate: flag(words, "recreatable"), RestartVersions: flag(words, "restart"), ForgetWriters: flag(words, "forget"),
		})
	}
	c := w.m.Delete(req)
	return point(ctx, w, c.Deleted, c.refusal(), req, pb.EventStoreServiceClient.Delete)
}

func (c *Changed) refusal() *refusal {
	if c.Code == 0 {
		return nil
	}
	return refuse(c.Code, c.Detail)
}
