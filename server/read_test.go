package server

import (
	"context"
	"errors"
	"io"
	"testing"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// readAll reads to the end and returns all batches, and the end with how many messages
// brought it.
func readAll(ctx context.Context, r *rig, req *pb.ReadRequest) ([]*pb.Batch, []*pb.ReadResponse, error) {
	stream, err := r.client.Read(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	var batches []*pb.Batch
	var messages []*pb.ReadResponse
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return batches, messages, nil
		}
		if err != nil {
			return batches, messages, err
		}
		batches = append(batches, m.GetBatches()...)
		messages = append(messages, m)
	}
}

var _ = testing.Short
