package server

import (
	"context"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// eventStore implements pb.EventStoreServiceServer on one shard.
type eventStore struct {
	pb.UnimplementedEventStoreServiceServer
	shard Shard
	log   *zap.Logger
	chain *chain
	// stopping is closed when the server stops: what would last on ends then.
	stopping <-chan struct{}
}

// Append implements pb.EventStoreServiceServer (contract 2). The timeline and everything
// from existence on are the shard's to judge.
func (s *eventStore) Append(ctx context.Context, req *pb.AppendRequest) (*pb.AppendResponse, error) {
	if e := checkAppend(req); e != nil {
		s.logAppend(req, e)
		return nil, e
	}
	resp, err := s.shard.Append(ctx, req)
	if err != nil {
		s.logAppend(req, err)
		return nil, err
	}
	return resp, nil
}

// logAppend logs an append that was not a success, with the caller's request_id.
func (s *eventStore) logAppend(req *pb.AppendRequest, err error) {
	if entry := s.log.Check(zapcore.DebugLevel, "an append was not a success"); entry != nil {
		entry.Write(zap.String("request_id", req.GetRequestId()), zap.String("client_id", req.GetClientId()),
			zap.Int("writes", len(req.GetWrites())), zap.Error(err))
	}
}
