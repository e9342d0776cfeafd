package server

import (
	"context"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// Shard is what the server needs of a shard; *replication.Shard is one. Its errors are
// *api.Error, errors of the call's context, or faults of the node.
type Shard interface {
	Cluster
	// Append judges and commits a request whose shape has been checked.
	Append(ctx context.Context, req *pb.AppendRequest) (*pb.AppendResponse, error)
	// OpenStream begins the shard's part of an AppendStream call.
	OpenStream(ctx context.Context) *replication.Stream
	// Trim and Delete judge and commit a request whose shape has been checked.
	Trim(ctx context.Context, req *pb.TrimRequest) (*pb.TrimResponse, error)
	Delete(ctx context.Context, req *pb.DeleteRequest) (*pb.DeleteResponse, error)
	// RegisterSchema judges and commits a request whose shape has been checked.
	RegisterSchema(ctx context.Context, req *pb.RegisterSchemaRequest) (*pb.RegisterSchemaResponse, error)
	// Read returns a view as fresh as asked for, which the caller releases.
	Read(ctx context.Context, o replication.ReadOptions) (*history.View, error)
	// ReadMark is Read together with the writer's in-flight mark of the same moment, nil if
	// it has nothing in flight.
	ReadMark(ctx context.Context, o replication.ReadOptions, k record.Key, client string) (*history.View, *uint64, error)
	// Follow follows the log from what is committed now on, once it may; the caller closes the
	// follower. now is the position that follows on what was committed when the call began.
	Follow(ctx context.Context, o replication.ReadOptions, scope replication.FollowScope) (f *replication.Follower, now uint64, err error)
	// Holder returns the newest batch of a writer that recorded seq, or nil.
	Holder(v *history.View, k record.Key, client string, seq uint64) (*pb.Holder, error)
	// Status describes the node.
	Status() replication.Status
	// Checks says what the node is well in.
	Checks() []replication.Check
	// Stats says how full the shard's bounded things are.
	Stats() replication.Stats
	// Leading says whether this node serves as leader, and when to ask again.
	Leading() (ready bool, changed <-chan struct{})
}
