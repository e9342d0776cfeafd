package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/archive"
	"github.com/tidemark-db/tidemark/test/cluster"
	"github.com/tidemark-db/tidemark/test/process"
	"github.com/tidemark-db/tidemark/test/writers"
)

func TestMain(m *testing.M) { process.Main(m) }

const writerCount = 16

// nodeArgs make the node flush, compact and take snapshots within the load.
func nodeArgs() []string {
	return []string{"--memtable-bytes", "1MiB", "--snapshot-log-bytes", "1MiB", "--trailing-log-bytes", "1MiB"}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestBackupOfANodeThatIsAlone(t *testing.T) {
	n := process.Start(t, process.Options{DataDir: filepath.Join(t.TempDir(), "data"), Args: nodeArgs()})
	conn := n.Dial(t)
	backUpAndRestore(t, conn, conn)
}

func TestBackupOfAFollower(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Nodes: 3, Args: nodeArgs()})
	leader := c.Leader()
	backUpAndRestore(t, leader.Conn(), c.Others(leader)[0].Conn())
}

// backUpAndRestore writes to one node and takes the backup of another.
func backUpAndRestore(t *testing.T, leader, node *grpc.ClientConn) {
	client := pb.NewEventStoreServiceClient(leader)
	clients := []pb.EventStoreServiceClient{client}
	// What the first set has written is acknowledged before the backup begins.
	before := writers.New("before", 1, writerCount)
	loaded(t, before, clients, 500*time.Millisecond)
	unread := trimAndDelete(t, client)
	meanwhile := writers.New("meanwhile", 2, writerCount)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	acked := make(chan struct{}, 1)
	ended := make(chan []writers.Ending, 1)
	go func() { // ends with ctx
		ended <- meanwhile.Run(ctx, clients, func() {
			select {
			case acked <- struct{}{}:
			default:
			}
		})
	}()
	for range 50 {
		<-acked
	}
	status, err := pb.NewClusterServiceClient(leader).GetStatus(within(t, 10*time.Second), &pb.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "b.tidemark")
	manifest := take(t, node, file)
	stop()
	for _, e := range <-ended {
		if e.Err != nil {
			t.Fatalf("%s: %v", e.Writer, e.Err)
		}
	}
	// Everything that was acknowledged by then was applied by the leader.
	if !manifest.Confirmed || manifest.LastPosition < status.GetLastPosition() || manifest.ClusterID != status.GetClusterId() || manifest.Timeline != status.GetTimeline() {
		t.Fatalf("expected all of cluster %s up to position %d, found %+v", status.GetClusterId(), status.GetLastPosition(), manifest)
	}

	made := restore(t, file, filepath.Join(dir, "restored"))
	n := process.Start(t, process.Options{DataDir: filepath.Join(dir, "restored"), Args: append(nodeArgs(), "--node-id", "r1")})
	conn := n.Dial(t)
	restored := pb.NewEventStoreServiceClient(conn)
	if now, err := pb.NewClusterServiceClient(conn).GetStatus(within(t, 10*time.Second), &pb.GetStatusRequest{}); err != nil || now.GetClusterId() != made.ClusterID ||
		now.GetTimeline() != made.Timeline || made.ClusterID == status.GetClusterId() || made.Timeline == status.GetTimeline() || now.GetLastPosition() != manifest.LastPosition {
		t.Fatalf("expected position %d of %+v, found %v, error %v", manifest.LastPosition, made, now, err)
	}
	if err := before.Retry(within(t, time.Minute), restored); err != nil {
		t.Errorf("resends: %v", err)
	}
	if err := before.Check(within(t, time.Minute), restored); err != nil {
		t.Errorf("what was acknowledged before the backup: %v", err)
	}
	same(t, client, restored, manifest.LastPosition, unread)
	for seq := uint64(1); seq <= 3; seq++ {
		_, err := restored.Append(within(t, 10*time.Second), writeGone(seq))
		if code := api.CodeOf(err); code != pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION {
			t.Errorf("sequence %d of what was trimmed and deleted: expected 2002, found %v", seq, err)
		}
	}
	if refused := oldTimeline(t, conn, status.GetTimeline()); refused < 10 {
		t.Errorf("expected ten calls and more to take a timeline, found %d", refused)
	}
	resp, err := restored.Append(within(t, 10*time.Second), &pb.AppendRequest{ClientId: "next", Timeline: made.Timeline, Writes: []*pb.Write{{
		Aggregate: &pb.AggregateKey{Org: "acme", Type: "orders", Id: "next"}, AllowCreate: true, EnforceClientIdempotency: true,
		Events: []*pb.NewEvent{{ClientSeq: 1, EventId: "next", Type: "t"}},
	}}})
	if err != nil || resp.GetResults()[0].GetPosition() != manifest.LastPosition+1 {
		t.Errorf("expected position %d next, found %v, error %v", manifest.LastPosition+1, resp, err)
	}
}

// gone is an aggregate that is trimmed and deleted before the backup.
func gone() *pb.AggregateKey { return &pb.AggregateKey{Org: "acme", Type: "orders", Id: "gone"} }

func writeGone(seq uint64) *pb.AppendRequest {
	return &pb.AppendRequest{ClientId: "gone", Writes: []*pb.Write{{
		Aggregate: gone(), AllowCreate: true, EnforceClientIdempotency: true, Events: []*pb.NewEvent{{ClientSeq: seq, EventId: fmt.Sprint(seq), Type: "t"}},
	}}}
}

// trimAndDelete returns how many positions there are whose batches cannot be read.
func trimAndDelete(t *testing.T, client pb.EventStoreServiceClient) uint64 {
	t.Helper()
	ctx := within(t, 30*time.Second)
	for seq := uint64(1); seq <= 3; seq++ {
		if _, err := client.Append(ctx, writeGone(seq)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Trim(ctx, &pb.TrimRequest{Aggregate: gone(), KeepFromVersion: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Delete(ctx, &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: gone(), AllowRecreate: true}}}); err != nil {
		t.Fatal(err)
	}
	return 5
}

// loaded runs a set for a while; all of it is acknowledged.
func loaded(t *testing.T, set *writers.Set, clients []pb.EventStoreServiceClient, d time.Duration) {
	t.Helper()
	for _, e := range set.Run(within(t, d), clients, nil) {
		if e.Err != nil {
			t.Fatalf("%s: %v", e.Writer, e.Err)
		}
	}
	if set.Acknowledged() == 0 || set.Unknown() != 0 {
		t.Fatalf("expected every request to be acknowledged, found %d, and %d that are not", set.Acknowledged(), set.Unknown())
	}
}

// take writes a node's backup to a file. (The command cannot reach into every test network.)
func take(t *testing.T, conn *grpc.ClientConn, file string) *archive.Manifest {
	t.Helper()
	stream, err := pb.NewClusterServiceClient(conn).Backup(within(t, time.Minute), &pb.BackupRequest{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(m.GetChunk()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	content, err := archive.Verify(f, nil)
	if err != nil || len(content.Findings) != 0 {
		t.Fatalf("expected a whole backup, found %+v, error %v", content, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return content.Manifest
}

// restored is what the command says that it has made.
type restored struct {
	ClusterID string `json:"cluster_id"`
	Timeline  string `json:"timeline"`
}

func restore(t *testing.T, file, dir string) (made restored) {
	t.Helper()
	run := func(args ...string) []byte {
		cmd := exec.CommandContext(within(t, time.Minute), process.Binary(t), args...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("tidemark %v: %v\n%s", args, err, stderr.String())
		}
		return out
	}
	if err := json.Unmarshal(run("restore", file, "--data-dir", dir, "--node-id", "r1", "--output", "json"), &made); err != nil {
		t.Fatal(err)
	}
	run("verify", dir)
	return made
}

// same compares everything up to a position, and the marks of all writers on it.
func same(t *testing.T, old, restored pb.EventStoreServiceClient, last, unread uint64) {
	t.Helper()
	want, got := everything(t, old, last), everything(t, restored, last)
	if uint64(len(want)) != last-unread || len(got) != len(want) {
		t.Fatalf("expected %d batches, found %d in the old cluster and %d in the restored one", last-unread, len(want), len(got))
	}
	aggregates := map[string]*pb.AggregateKey{"gone": gone()}
	for i := range want {
		if !proto.Equal(got[i], want[i]) {
			t.Fatalf("position %d: expected\n%v, found\n%v", i+1, want[i], got[i])
		}
		aggregates[fmt.Sprint(got[i].GetAggregate())] = got[i].GetAggregate()
	}
	for name, k := range aggregates {
		a, err := old.ListMarks(within(t, 10*time.Second), &pb.ListMarksRequest{Aggregate: k})
		if err != nil {
			t.Fatal(err)
		}
		b, err := restored.ListMarks(within(t, 10*time.Second), &pb.ListMarksRequest{Aggregate: k})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.GetMarks()) == 0 || len(a.GetMarks()) < len(b.GetMarks()) {
			t.Fatalf("%s: expected the marks %v, found %v", name, a, b)
		}
		byClient := map[string]*pb.WriterMark{}
		for _, m := range a.GetMarks() {
			byClient[m.GetClientId()] = m
		}
		for _, m := range b.GetMarks() {
			// The old cluster may have gone on with this aggregate after the backup.
			o := byClient[m.GetClientId()]
			if o == nil || o.GetMark() < m.GetMark() || o.GetHolder().GetPosition() <= last && !proto.Equal(o, m) || m.GetHolder().GetPosition() > last {
				t.Errorf("%s: expected the mark %v, found %v", name, o, m)
			}
		}
	}
}

// everything is what a cluster has up to a position.
func everything(t *testing.T, client pb.EventStoreServiceClient, last uint64) (batches []*pb.Batch) {
	t.Helper()
	stream, err := client.ReadAll(within(t, time.Minute), &pb.ReadAllRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return batches
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range m.GetBatches() {
			if b.GetPosition() <= last {
				batches = append(batches, b)
			}
		}
	}
}

// oldTimeline makes every call that takes a timeline with one that is not the cluster's, and
// counts them. Each is otherwise in order.
func oldTimeline(t *testing.T, conn *grpc.ClientConn, timeline string) (refused int) {
	t.Helper()
	key := &pb.AggregateKey{Org: "acme", Type: "orders", Id: "before-0-0"}
	methods := pb.File_tidemark_v1_event_store_proto.Services().ByName("EventStoreService").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		in := m.Input()
		if in.Fields().ByName("timeline") == nil || m.IsStreamingClient() {
			continue
		}
		kind, err := protoregistry.GlobalTypes.FindMessageByName(in.FullName())
		if err != nil {
			t.Fatal(err)
		}
		req := kind.New()
		set := func(field string, v any) {
			if f := in.Fields().ByName(protoreflect.Name(field)); f != nil {
				req.Set(f, protoreflect.ValueOf(v))
			}
		}
		set("timeline", timeline)
		set("client_id", "w")
		set("org", "acme")

		set("aggregate", key.ProtoReflect())
		switch req := req.Interface().(type) {
		case *pb.AppendRequest:
			req.Writes = []*pb.Write{{Aggregate: key, Events: []*pb.NewEvent{{ClientSeq: 1, Type: "t"}}}}
		case *pb.FindEventRequest:
			req.ClientSeq = 1
		case *pb.RegisterSchemaRequest:
			req.Type, req.EventType, req.Format, req.Definition = "orders", "t", pb.SchemaFormat_SCHEMA_FORMAT_JSON_SCHEMA, []byte("{}")
		case *pb.GetSchemaRequest:
			req.Type, req.EventType = "orders", "t"
		case *pb.TrimRequest:
			req.KeepFromVersion = 1
		case *pb.DeleteRequest:
			req.Deletes = []*pb.AggregateDelete{{Aggregate: key}}
		case *pb.SubscribeRequest:
			req.Scope = &pb.SubscribeRequest_All{All: &pb.AllScope{}}
			req.Start = &pb.SubscribeRequest_FromPosition{FromPosition: 2}
		}
		method := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
		stream, err := conn.NewStream(within(t, 10*time.Second), &grpc.StreamDesc{ServerStreams: true}, method)
		if err != nil {
			t.Fatal(err)
		}
		out, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(stream.SendMsg(req.Interface()), stream.CloseSend())
		if err == nil {
			err = stream.RecvMsg(out.New().Interface())
		}
		if code := api.CodeOf(err); code != pb.ErrorCode_ERROR_CODE_TIMELINE_MISMATCH {
			t.Errorf("%s: expected 2031, found %v", method, err)
			continue
		}
		refused++
	}
	return refused
}
