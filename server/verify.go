package server

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/audit"
	"github.com/tidemark-db/tidemark/wal/record"
)

const (
	// maxVerifications is how many Verify calls a node works on at once: each takes CPU and
	// reads from the disk that writes and reads need.
	maxVerifications = 2
	retryVerify      = 10 * time.Second

	// A verification works for verifyWork and then rests for verifyRest, so that it takes at
	// most a quarter of a core. A step holds a view for as long as it works.
	verifyWork = 20 * time.Millisecond
	verifyRest = 60 * time.Millisecond
	// verifyTell is how often the caller is told how far it is.
	verifyTell = time.Second
)

// pace is how long a verification works before it rests, and how long it rests.
type pace struct{ work, rest time.Duration }

// verifications counts them.
type verifications struct {
	running           atomic.Int64
	batches, findings atomic.Uint64
}

// Verify implements pb.ClusterServiceServer. Every member answers, for its own files.
func (s *clusterService) Verify(req *pb.VerifyRequest, stream pb.ClusterService_VerifyServer) error {
	auditor, e := auditorOf(req)
	if e != nil {
		return e
	}
	defer s.verifications.running.Add(-1)
	if n := s.verifications.running.Add(1); n > maxVerifications {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY,
			"%d verifications are at work on this node, which is its limit, because each takes from what reads and writes need; ask again later, or ask another node", maxVerifications).After(retryVerify)
	}
	v := &verification{s: s, stream: stream, auditor: auditor, began: &pb.VerifyProgress{NodeId: s.shard.Status().NodeID}}
	err := v.run(stream.Context())
	p := auditor.Progress()
	s.log.Info("a verification ended", zap.String("org", req.GetOrg()), zap.String("type", req.GetType()), zap.String("id", req.GetId()),
		zap.Uint64("aggregates", p.Aggregates), zap.Uint64("batches", p.Batches), zap.Uint64("findings", v.findings), zap.Error(err))
	return err
}

// auditorOf makes what checks the scope of a request.
func auditorOf(req *pb.VerifyRequest) (*audit.Auditor, *api.Error) {
	prefix := ""
	parts := []struct{ field, value string }{{"org", req.GetOrg()}, {"type", req.GetType()}, {"id", req.GetId()}}
	for i, p := range parts {
		if p.value == "" {
			continue
		}
		if i > 0 && parts[i-1].value == "" {
			return nil, api.Invalid(p.field, "is given without %s, which it needs", parts[i-1].field)
		}
		if fault := partFault(p.value); fault != "" {
			return nil, badPart(p.field, fault, p.value)
		}
		prefix += p.value + "\x00"
	}
	if req.GetId() != "" {
		return audit.NewOf(record.Key(prefix)), nil
	}
	return audit.New(prefix), nil
}

// verification is one Verify call.
type verification struct {
	s        *clusterService
	stream   pb.ClusterService_VerifyServer
	auditor  *audit.Auditor
	began    *pb.VerifyProgress
	findings uint64
	batches  uint64 // that verifications knows of
}

// run works and rests until everything in scope is checked. No view is held while it rests or
// while the caller takes what it is told.
func (v *verification) run(ctx context.Context) error {
	told := time.Time{}
	for {
		found, done, err := v.step(ctx)
		if tellErr := v.tell(found, done, err, &told); tellErr != nil {
			return tellErr
		}
		if errors.Is(err, record.ErrCorrupt) {
			// Not api.Corruptf, which ends the node: that something is damaged is what was
			// asked for, and was told.
			return api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "not everything could be looked at: %w", err)
		}
		if done || err != nil {
			return err
		}
		if err := v.rest(ctx); err != nil {
			return err
		}
	}
}

// step checks for as long as the pace says, in a view of its own.
func (v *verification) step(ctx context.Context) ([]audit.Finding, bool, error) {
	view, err := v.s.shard.Read(ctx, replication.ReadOptions{Consistency: pb.Consistency_CONSISTENCY_ANY})
	if err != nil {
		return nil, false, err
	}
	defer view.Release()
	if v.began.Timeline == "" {
		v.began.Timeline, v.began.Position = view.Applied().Timeline, view.Applied().Position
	}
	end := time.Now().Add(v.s.verifyPace.work)
	return v.auditor.Step(view, func() bool { return ctx.Err() == nil && time.Now().Before(end) })
}

// tell sends what was found, and otherwise how far it is, if that is due.
func (v *verification) tell(found []audit.Finding, done bool, failed error, told *time.Time) error {
	p := v.auditor.Progress()
	v.findings += uint64(len(found))
	v.s.verifications.findings.Add(uint64(len(found)))
	v.s.verifications.batches.Add(p.Batches - v.batches)
	v.batches = p.Batches
	if len(found) == 0 && (failed != nil || !done && time.Since(*told) < verifyTell) {
		return nil
	}
	*told = time.Now()
	m := &pb.VerifyResponse{Progress: &pb.VerifyProgress{
		NodeId: v.began.GetNodeId(), Timeline: v.began.GetTimeline(), Position: v.began.GetPosition(),
		Aggregates: p.Aggregates, Batches: p.Batches, Events: p.Events, Bytes: p.Bytes, Findings: v.findings,
		Aggregate: messageOf(p.Key), Done: done,
	}}
	for i := range found {
		f := &found[i]
		m.Findings = append(m.Findings, &pb.VerifyFinding{
			Kind: f.Kind, Aggregate: messageOf(f.Key), Incarnation: f.Incarnation, Version: f.Version, Text: f.Text,
		})
	}
	return v.stream.Send(m)
}

// messageOf is a key as a message; nil if it is none.
func messageOf(k record.Key) *pb.AggregateKey {
	org, typ, id, ok := k.Parts()
	if !ok {
		return nil
	}
	return &pb.AggregateKey{Org: org, Type: typ, Id: id}
}

// rest waits until it is time to go on, or says why not to.
func (v *verification) rest(ctx context.Context) error {
	timer := time.NewTimer(v.s.verifyPace.rest)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-v.s.stopping:
		return api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "this node is stopping: not everything was verified; ask again, or ask another node").With(&pb.NotLeader{})
	}
}
