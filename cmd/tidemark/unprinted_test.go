package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// changer does whatever it is asked for.
type changer struct {
	pb.UnimplementedClusterServiceServer
}

func (changer) RemoveNode(context.Context, *pb.RemoveNodeRequest) (*pb.RemoveNodeResponse, error) {
	return &pb.RemoveNodeResponse{}, nil
}

func (changer) TransferLeadership(context.Context, *pb.TransferLeadershipRequest) (*pb.TransferLeadershipResponse, error) {
	return &pb.TransferLeadershipResponse{LeaderId: "n2"}, nil
}

// Exit code 1 says that nothing has happened. An append whose answer met a full disk on standard
// output ended with it all the same, though the event had landed.
func TestAnAnswerThatCannotBePrintedIsNoFailureOfTheChange(t *testing.T) {
	store := &trimmer{fakeStore: &fakeStore{
		append:  func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { return appendAnswer(), nil },
		cluster: changer{},
	}}
	server := store.startAs(t, store)
	full := writerFunc(func([]byte) (int, error) { return 0, errors.New("no space left on device") })
	schemas := &registry{fakeStore: &fakeStore{}}
	file := filepath.Join(t.TempDir(), "placed.json")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		done string
		args []string
	}{
		{"the write has landed", appendArgs(server)},
		{"the trim has happened", []string{"trim", "a/b/c", "--keep-from", "2", "--server", server}},
		{"the delete has happened", []string{"delete", "a/b/c", "--yes", "--server", server}},
		{"the schema is registered", []string{"schema", "register", "acme/orders", "Placed", "1.0", file, "--format", "json-schema", "--server", schemas.startAs(t, schemas)}},
		{"the cluster is changed", []string{"cluster", "remove", "n3", "--server", server}},
		{"leadership was handed over", []string{"cluster", "transfer", "--server", server}},
	} {
		for _, output := range []string{outputTable, outputJSON} {
			var stderr bytes.Buffer
			code := run(t.Context(), append(c.args, "--output", output), strings.NewReader(""), full, &stderr)
			text := c.done + ", but the answer could not be printed: no space left on device"
			want := "tidemark: " + text + "\n"
			if output == outputJSON {
				want = `{"error":{"code":0,"message":"` + text + `","exit_code":23,"may_have_happened":true}}` + "\n"
			}
			if code != exitUnknown || stderr.String() != want {
				t.Errorf("%q: exit %d, stderr %q; want %d, %q", c.args, code, stderr.String(), exitUnknown, want)
			}
		}
	}
}
