package replication

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// BenchmarkAppend is the write path without gRPC: guarded, enforced appends of one event of
// 200 bytes by as many writers as are outstanding, each on its own aggregate.
func BenchmarkAppend(b *testing.B) {
	for _, outstanding := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("outstanding=%d", outstanding), func(b *testing.B) {
			s, err := Open(Options{Dir: b.TempDir(), MinFreeDiskBytes: -1})
			if err != nil {
				b.Fatal(err)
			}
			for ready, changed := s.Leading(); !ready; ready, changed = s.Leading() {
				<-changed
			}
			payload := make([]byte, 200)
			var next atomic.Int64
			var left atomic.Int64
			left.Store(int64(b.N))
			done := make(chan error, outstanding)
			b.ReportAllocs()
			b.ResetTimer()
			for range outstanding {
				go func() {
					id := fmt.Sprint(next.Add(1))
					client := "writer-" + id
					for v := uint64(0); left.Add(-1) >= 0; v++ {
						_, err := s.Append(context.Background(), &pb.AppendRequest{ClientId: client, Writes: []*pb.Write{{
							Aggregate: &pb.AggregateKey{Org: "bench", Type: "orders", Id: id}, AllowCreate: true,
							ExpectedVersion: proto.Uint64(v), EnforceClientIdempotency: true,
							Events: []*pb.NewEvent{{ClientSeq: v + 1, EventId: "0123456789abcdef", Type: "placed", Payload: payload, ContentType: "application/json"}},
						}}})
						if err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
			}
			for range outstanding {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			if err := s.Stop(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}
