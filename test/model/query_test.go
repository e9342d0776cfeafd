package model

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// point compares one unary read.
func point[Req any, Resp proto.Message](ctx context.Context, w *world, want Resp, refused *refusal, req Req,
	call func(pb.EventStoreServiceClient, context.Context, Req, ...grpc.CallOption) (Resp, error)) (string, error) {
	told := refused.text(w)
	if refused == nil {
		told = cmp.Or(w.text(want), "nothing")
	}
	if w.srv == nil {
		return told, nil
	}
	got, err := call(w.srv.Client(), ctx, req)
	if refused != nil || err != nil {
		return told, refused.check(w, err)
	}
	return told, same(want, got)
}

func (w *world) listMarks(ctx context.Context, o op) (string, error) {
	want := w.m.ListMarks(w.key(o.args[0]))
	told := cmp.Or(w.text(&pb.ListMarksResponse{Marks: want}), "none")
	if w.srv == nil {
		return told, nil
	}
	size := uint32(number(o.args, "page"))
	got := &pb.ListMarksResponse{}
	for token, pages := "", 0; ; pages++ {
		req := &pb.ListMarksRequest{Aggregate: w.key(o.args[0]), PageSize: size, PageToken: token, Consistency: consistency(o.args)}
		page, err := w.srv.Client().ListMarks(ctx, req)
		if err != nil {
			return told, err
		}
		if size > 0 && len(page.GetMarks()) > int(size) || pages > len(want) {
			return told, fmt.Errorf("page %d has %d marks of a page size of %d", pages, len(page.GetMarks()), size)
		}
		got.Marks = append(got.Marks, page.GetMarks()...)
		if token = page.GetNextPageToken(); token == "" {
			return told, same(&pb.ListMarksResponse{Marks: want}, got)
		}
	}
}

func (w *world) read(ctx context.Context, req *pb.ReadRequest) (string, error) {
	batches, end, code, detail := w.m.Read(req)
	var refused *refusal
	var lines []string
	if code != 0 {
		refused = refuse(code, nil)
		if detail != nil {
			refused = refuse(code, detail)
		}
		lines = append(lines, refused.text(w))
	} else {
		for _, b := range batches {
			lines = append(lines, "  "+w.text(b))
		}
		lines = append(lines, "  end "+w.text(end))
	}
	told := strings.TrimSpace(strings.Join(lines, "\n"))
	if w.srv == nil {
		return told, nil
	}
	got, err := readAll(ctx, w.srv.Client(), req)
	if refused != nil || err != nil {
		return told, refused.check(w, err)
	}
	return told, errors.Join(same(&pb.ReadResponse{Batches: batches, End: end}, got), checkChain(got.GetBatches(), req.GetFilter()))
}

// readAll makes a read and joins its messages.
func readAll(ctx context.Context, client pb.EventStoreServiceClient, req *pb.ReadRequest) (*pb.ReadResponse, error) {
	stream, err := client.Read(ctx, req)
	if err != nil {
		return nil, err
	}
	got := &pb.ReadResponse{}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return nil, err
		}
		if got.GetEnd() != nil {
			return nil, errors.New("the read goes on after its end")
		}
		proto.Merge(got, part)
	}
}

func (w *world) readAll(ctx context.Context, req *pb.ReadAllRequest) (string, error) {
	batches, end, code := w.m.ReadAll(req)
	var refused *refusal
	told := ""
	if code != 0 {
		refused = refuse(code, nil)
		told = refused.text(w)
	} else {
		for _, b := range batches {
			told += "  " + w.text(b) + "\n"
		}
		told += "  end " + w.text(end)
	}
	told = strings.TrimSpace(told)
	if w.srv == nil {
		return told, nil
	}
	stream, err := w.srv.Client().ReadAll(ctx, req)
	if err != nil {
		return told, err
	}
	got := &pb.ReadAllResponse{}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return told, same(&pb.ReadAllResponse{Batches: batches, End: end}, got)
		}
		if refused != nil || err != nil {
			return told, refused.check(w, err)
		}
		if got.GetEnd() != nil {
			return told, errors.New("the read goes on after its end")
		}
		proto.Merge(got, part)
	}
}

// checkChain recomputes the hashes of whole batches from what a read returned.
func checkChain(batches []*pb.Batch, f *pb.Filter) error {
	if f != nil {
		return nil // without the events that were filtered out nothing can be recomputed
	}
	for i, b := range batches {
		if !bytes.Equal(chainHash(b), b.GetChainHash()) {
			return fmt.Errorf("version %d: the chain hash is not that of the batch", b.GetVersion())
		}
		if i > 0 && b.GetVersion() == batches[i-1].GetVersion()+1 && !bytes.Equal(b.GetPreviousChainHash(), batches[i-1].GetChainHash()) {
			return fmt.Errorf("version %d does not follow on its predecessor's chain hash", b.GetVersion())
		}
	}
	return nil
}
