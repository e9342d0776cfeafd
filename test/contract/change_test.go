package contract

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// trim answers "trim AGGREGATE keep=V [expect=V] [timeline=T]".
func (s *script) trim(ctx context.Context, a arguments) string {
	req := &pb.TrimRequest{Aggregate: key(a.first()), KeepFromVersion: a.number("keep"), Timeline: a.value("timeline")}
	if a.has("expect") {
		req.ExpectedVersion = proto.Uint64(a.number("expect"))
	}
	resp, err := s.node.client.Trim(ctx, req)
	return s.answer(resp, err)
}

// delete answers "delete [timeline=T] [async=NAME]", one line an aggregate: AGGREGATE [expect=V]
// [recreate] [restart] [forget].
func (s *script) delete(t *testing.T, ctx context.Context, a arguments, input string) string {
	req := &pb.DeleteRequest{Timeline: a.value("timeline")}
	for _, line := range strings.Split(input, "\n") {
		if line == "" {
			continue
		}
		words := strings.Fields(line)
		d := &pb.AggregateDelete{Aggregate: key(words[0])}
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, "=")
			switch name {
			case "expect":
				n, err := strconv.ParseUint(value, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				d.ExpectedVersion = &n
			case "recreate":
				d.AllowRecreate = true
			case "restart":
				d.RestartVersions = true
			case "forget":
				d.ForgetWriters = true
			}
		}
		req.Deletes = append(req.Deletes, d)
	}
	call := func(ctx context.Context) string {
		resp, err := s.node.client.Delete(ctx, req)
		return s.answer(resp, err)
	}
	return s.maybeAsync(t, ctx, a.value("async"), call)
}

// maybeAsync makes a call, or starts it under a name and returns once it is in flight.
func (s *script) maybeAsync(t *testing.T, ctx context.Context, name string, call func(context.Context) string) string {
	if name == "" {
		return call(ctx)
	}
	before := s.node.shard.Status().InFlightRequests
	done := make(chan string, 1)
	s.async[name] = done
	go func() { // ends with the call, at the latest when the script's node stops
		done <- call(context.Background())
	}()
	s.node.await(t, "the call is in flight", func() bool { return s.node.shard.Status().InFlightRequests > before })
	return "in flight"
}
