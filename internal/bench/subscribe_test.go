package bench

import (
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/fakestore"
)

// The bare stream brings at least as many batches as it is asked for, in messages of the number
// asked for, and no payload of another size.
func TestBareStream(t *testing.T) {
	client := pb.NewEventStoreServiceClient(serveEcho(t))
	r, sample, err := receive(t.Context(), client, bareRequest(1000, 300, 77), 0)
	if err != nil {
		t.Fatal(err)
	}
	if r.Batches != 1200 || r.Messages != 4 || len(sample.GetEvents()[0].GetPayload()) != 77 {
		t.Errorf("%+v with %d bytes of payload", r, len(sample.GetEvents()[0].GetPayload()))
	}
	if _, err := CatchUp(t.Context(), pb.NewEventStoreServiceClient(fakestore.Dial(t, fakestore.New())), client, 0); err == nil {
		t.Error("a store without subscriptions is measured")
	}
}

func serveEcho(t *testing.T) grpc.ClientConnInterface {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterEventStoreServiceServer(server, newEcho())
	done := make(chan struct{})
	go func() { // ends with Stop
		defer close(done)
		_ = server.Serve(l)
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-done
	})
	return conn
}
