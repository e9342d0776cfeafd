package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// echo answers an append with what a store would answer, and does nothing else.
type echo struct {
	pb.UnimplementedEventStoreServiceServer
	position atomic.Uint64
	// Parts of an answer that may be the same for all: they only have to have their size.
	committedAt *timestamppb.Timestamp
	chainHash   []byte
}

const echoTimeline = "0123456789abcdef0123456789abcdef"

func newEcho() *echo {
	return &echo{committedAt: timestamppb.Now(), chainHash: make([]byte, 32)}
}

func (e *echo) Append(_ context.Context, req *pb.AppendRequest) (*pb.AppendResponse, error) {
	if len(req.GetWrites()) == 0 {
		return nil, errors.New("the echo expects a write")
	}
	w := req.GetWrites()[0]
	seq := w.GetEvents()[0].GetClientSeq()
	return &pb.AppendResponse{RequestId: req.GetRequestId(), Timeline: echoTimeline, Results: []*pb.WriteResult{{
		Aggregate: w.GetAggregate(), Version: seq, Incarnation: 1, Position: e.position.Add(1),
		CommittedAt: e.committedAt, FirstEventNumber: seq, ChainHash: e.chainHash,
	}}}, nil
}

// AppendStream answers each message with one.
func (e *echo) AppendStream(stream grpc.BidiStreamingServer[pb.AppendStreamRequest, pb.AppendStreamResponse]) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		out := &pb.AppendStreamResponse{Answers: make([]*pb.AppendAnswer, 0, len(m.GetAppends()))}
		for _, a := range m.GetAppends() {
			response, err := e.Append(stream.Context(), a)
			if err != nil {
				return err
			}
			out.Answers = append(out.Answers, &pb.AppendAnswer{RequestId: a.GetRequestId(), Outcome: &pb.AppendAnswer_Response{Response: response}})
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

// ServeEcho serves the echo on a free loopback port until lifeline ends, which is how the
// process that started it takes it along, however it ends itself. The address is the one
// line that it writes to out.
func ServeEcho(lifeline io.Reader, out io.Writer, opts ...grpc.ServerOption) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the echo: %w", err)
	}
	server := grpc.NewServer(opts...)
	pb.RegisterEventStoreServiceServer(server, newEcho())
	served := make(chan error, 1)
	go func() { // ends with server.Stop, which may come first
		err := server.Serve(listener)
		if errors.Is(err, grpc.ErrServerStopped) {
			err = nil
		}
		served <- err
	}()
	if _, err := fmt.Fprintln(out, listener.Addr()); err != nil {
		server.Stop()
		return errors.Join(err, <-served)
	}
	_, err = io.Copy(io.Discard, lifeline)
	server.Stop()
	return errors.Join(err, <-served)
}

// EchoProcess is an echo server in a process of its own.
type EchoProcess struct {
	// Address is where it listens.
	Address string

	lifeline io.Closer
	cmd      *exec.Cmd
}

// startTimeout bounds how long the echo server may take to come up.
const startTimeout = 10 * time.Second

// StartEcho runs command, which must call ServeEcho on its standard input and output, and
// waits for its address. Stop ends it.
func StartEcho(ctx context.Context, command *exec.Cmd) (*EchoProcess, error) {
	lifeline, err := command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the echo server: %w", err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the echo server: %w", err)
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the echo server: %w", err)
	}
	p := &EchoProcess{lifeline: lifeline, cmd: command}
	// Reading ends with the line, or with the process.
	type line struct {
		text string
		err  error
	}
	lines := make(chan line, 1)
	go func() {
		text, err := bufio.NewReader(out).ReadString('\n')
		lines <- line{text, err}
	}()
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case l := <-lines:
		if l.err != nil {
			return nil, fmt.Errorf("the echo server ended before it was ready: %w", errors.Join(p.Stop(), l.err))
		}
		p.Address = strings.TrimSpace(l.text)
		return p, nil
	case <-timeout.C:
		err = fmt.Errorf("the echo server was not ready within %s", startTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = command.Process.Kill()
	_ = p.Stop()
	return nil, err
}

// Stop ends the process and waits for it.
func (p *EchoProcess) Stop() error {
	_ = p.lifeline.Close()
	return p.cmd.Wait()
}
