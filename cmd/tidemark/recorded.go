package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// comparison is what is known of the event that holds the sequence and the id of another one.
type comparison int

const (
	// notCompared: it cannot be read (any more).
	notCompared comparison = iota
	sameContent
	otherContent
)

// compareRecorded looks up what is recorded under the sequence and the event id of the one
// event of req, which was refused for that. An id alone does not say that the event landed: a
// writer can have given it away before.
func (f *appendFlags) compareRecorded(ctx context.Context, req *pb.AppendRequest, refusal error) comparison {
	detail, ok := api.DetailOf[*pb.AppendFailure](refusal)
	write := req.GetWrites()[0]
	event := write.GetEvents()[0]
	holder := detail.GetHolder()
	if !ok || event.GetEventId() == "" || holder.GetEventId() != event.GetEventId() || holder.GetOthers() {
		return notCompared // nor is it asked
	}
	switch {
	case holder.GetContentDiffers():
		return otherContent
	case req.GetOnDuplicate() == pb.OnDuplicate_ON_DUPLICATE_CONFIRM:
		return sameContent // the server has compared
	}
	var resp *pb.FindEventResponse
	err := f.client.call(ctx, func(ctx context.Context, store pb.EventStoreServiceClient) (err error) {
		resp, err = store.FindEvent(ctx, &pb.FindEventRequest{
			Aggregate: write.GetAggregate(), ClientId: req.GetClientId(), ClientSeq: event.GetClientSeq(), Timeline: req.GetTimeline(),
		})
		return err
	})
	events := resp.GetBatch().GetEvents()
	if i := int(resp.GetEventIndex()); err == nil && i < len(events) && resp.GetHolder().GetPosition() == holder.GetPosition() {
		if sameEvent(event, events[i]) {
			return sameContent
		}
		return otherContent
	}
	return notCompared
}

// sameEvent compares as the server does with CONFIRM (contract 2.5).
func sameEvent(sent *pb.NewEvent, recorded *pb.Event) bool {
	return sent.GetClientSeq() == recorded.GetClientSeq() && sent.GetEventId() == recorded.GetEventId() &&
		sent.GetType() == recorded.GetType() && proto.Equal(schemaOf(sent.GetSchema()), schemaOf(recorded.GetSchema())) &&
		proto.Equal(sent.GetOccurredAt(), recorded.GetOccurredAt()) && bytes.Equal(sent.GetPayload(), recorded.GetPayload()) &&
		sent.GetContentType() == recorded.GetContentType() && maps.Equal(sent.GetMetadata(), recorded.GetMetadata()) &&
		proto.Equal(sent.GetEncryption(), recorded.GetEncryption())
}

// schemaOf fills the default in.
func schemaOf(v *pb.SchemaVersion) *pb.SchemaVersion {
	if v == nil {
		return &pb.SchemaVersion{Major: 1}
	}
	return v
}

// heldAdvice says what the holder of an event's sequence and id is to the event.
func heldAdvice(known comparison, version, seq uint64, look string) string {
	switch known {
	case sameContent:
		return fmt.Sprintf("This event had landed already: an earlier call wrote it as version %d. There is nothing left to do.", version)
	case otherContent:
		return fmt.Sprintf("Sequence %d was recorded in version %d with this event id and other content. Yours was not written. To see what was: %s", seq, version, look)
	}
	return fmt.Sprintf("An event with this id and sequence landed as version %d; its content could not be read to compare it. To have the server compare, send the same again with --confirm. To see what is left of it: %s", version, look)
}
