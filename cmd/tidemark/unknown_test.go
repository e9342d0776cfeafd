package main

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const unknownAdvice = `The write may or may not have landed, and may still land. Keep --seq 7 and send the same again: it cannot be written twice, and the answer is final (20 = it had landed; with --event-id and --confirm, the original result). To look without writing: tidemark find acme/orders/4821 billing 7 ("not found" is final only once the call cannot be on its way any more).
`

// Whatever the way in which an answer fails to come, the exit code is 23 and the request
// was sent once, however many other servers there are to try.
func TestAnUnknownOutcomeIsNeverResent(t *testing.T) {
	spare := &fakeStore{append: func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { return appendAnswer(), nil }}
	spareAddress := spare.start(t)

	hang := func(ctx context.Context, _ *pb.AppendRequest) (*pb.AppendResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for _, c := range []struct {
		name  string
		args  []string
		store *fakeStore
		want  string // the first line
	}{
		{"2014", nil, refuse(api.Errorf(pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN, "the node is stopping")),
			"tidemark: 2014 WriteOutcomeUnknown: the node is stopping\n"},
		{"11001", nil, refuse(api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "a bug")),
			"tidemark: 11001 Internal: a bug\n"},
		{"a code from the future", nil, refuse(api.Errorf(2999, "new")),
			"tidemark: 2999 Code2999: new\n"},
		{"a lost connection, as a mesh reports it", nil, refuse(status.Error(codes.Unavailable, "upstream reset")),
			"tidemark: the connection was lost before the answer came: upstream reset\n"},
		{"a panic in the server", nil, refuse(status.Error(codes.Unknown, "boom")),
			"tidemark: the call failed with Unknown: boom\n"},
		{"no answer in time", []string{"--timeout", "1s"}, &fakeStore{append: hang},
			"tidemark: no answer came within --timeout\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := c.store.start(t) + "," + spareAddress
			code, stdout, stderr := runCommand(t, appendArgs(server, c.args...)...)
			if want := c.want + unknownAdvice; code != exitUnknown || stdout != "" || stderr != want {
				t.Errorf("exit %d, stdout %q, stderr\n%s\nwant 23, nothing,\n%s", code, stdout, stderr, want)
			}
			c.store.asked(t, appendRequest())
		})
	}

	t.Run("the server goes away", func(t *testing.T) {
		store := &fakeStore{}
		store.append = func(ctx context.Context, _ *pb.AppendRequest) (*pb.AppendResponse, error) {
			go store.server.Stop() // ends when this handler has returned
			<-ctx.Done()
			return nil, ctx.Err()
		}
		code, stdout, stderr := runCommand(t, appendArgs(store.start(t)+","+spareAddress)...)
		if code != exitUnknown || stdout != "" || !strings.HasSuffix(stderr, unknownAdvice) {
			t.Errorf("exit %d, stdout %q, stderr\n%s\nwant 23, nothing, and the advice", code, stdout, stderr)
		}
		store.asked(t, appendRequest())
	})

	t.Run("the user interrupts", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store := &fakeStore{append: func(call context.Context, _ *pb.AppendRequest) (*pb.AppendResponse, error) {
			cancel()
			<-call.Done()
			return nil, call.Err()
		}}
		var out, errs strings.Builder
		code := run(ctx, appendArgs(store.start(t)), strings.NewReader(""), &out, &errs)
		if want := "tidemark: interrupted before the answer came\n" + unknownAdvice; code != exitUnknown || errs.String() != want {
			t.Errorf("exit %d, stderr\n%s\nwant 23,\n%s", code, errs.String(), want)
		}
	})
	spare.asked(t)
}

func TestAnUnenforcedUnknownOutcomeWarnsAgainstResending(t *testing.T) {
	store := refuse(api.Errorf(pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN, "the node is stopping"))
	code, _, stderr := runCommand(t, appendArgs(store.start(t), "--enforce=false", "--output", "json")...)
	want := `{"error":{"code":2014,"name":"WriteOutcomeUnknown","grpc_status":"Unknown","message":"the node is stopping","exit_code":23,"may_have_happened":true,` +
		`"advice":"The write may or may not have landed, and may still land. Keep --seq 7 and do not send it again without --enforce: it could be written twice. ` +
		`To look without writing: tidemark find acme/orders/4821 billing 7 (\"not found\" is final only once the call cannot be on its way any more)."}}` + "\n"
	if code != exitUnknown || stderr != want {
		t.Errorf("exit %d, stderr\n%s\nwant 23,\n%s", code, stderr, want)
	}
}
