package replication

import (
	"container/list"
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/schema"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// Bounds of the compiled validators that are kept. What one takes in memory is not known; it
// grows with its definition.
const (
	maxValidators           = 1000
	maxValidatorDefinitions = 16 << 20
)

// validators are the schemas that were compiled last, by their places: a schema never changes, so
// one that is kept is right for good. Calls use it beside each other.
type validators struct {
	// turn is held while a definition is compiled: one at a time, because that takes memory.
	turn chan struct{}

	mu    sync.Mutex
	kept  map[string]*list.Element
	order *list.List // newest use first
	stats ValidatorStats
}

type keptValidator struct {
	place     string
	size      int64
	validator *schema.Validator
}

// ValidatorStats says what the kept validators have done, and events in them.
type ValidatorStats struct {
	Entries, MaxEntries     int
	Bytes, MaxBytes         int64 // of definitions
	Hits, Misses, Evictions uint64
	// Events of writes that passed all other checks, by what became of them: they matched, did
	// not match, had no schema under their version though their type has others, or were
	// encrypted.
	Valid, Invalid, Unregistered, Encrypted uint64
}

func newValidators() *validators {
	return &validators{
		turn: make(chan struct{}, 1), kept: make(map[string]*list.Element), order: list.New(),
		stats: ValidatorStats{MaxEntries: maxValidators, MaxBytes: maxValidatorDefinitions},
	}
}

// Stats is a copy.
func (v *validators) Stats() ValidatorStats {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stats
}

func (v *validators) get(place string) *schema.Validator {
	v.mu.Lock()
	defer v.mu.Unlock()
	e := v.kept[place]
	if e == nil {
		return nil
	}
	v.stats.Hits++
	v.order.MoveToFront(e)
	return e.Value.(*keptValidator).validator
}

// put keeps a validator that get did not find.
func (v *validators) put(place string, size int, validator *schema.Validator) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stats.Misses++
	if v.kept[place] != nil {
		return
	}
	v.kept[place] = v.order.PushFront(&keptValidator{place, int64(size), validator})
	v.stats.Bytes += int64(size)
	for v.order.Len() > v.stats.MaxEntries || v.stats.Bytes > v.stats.MaxBytes {
		last := v.order.Remove(v.order.Back()).(*keptValidator)
		delete(v.kept, last.place)
		v.stats.Bytes -= last.size
		v.stats.Evictions++
	}
	v.stats.Entries = v.order.Len()
}

// compile compiles in its turn.
func (v *validators) compile(ctx context.Context, format byte, message, eventType string, definition []byte) (*schema.Validator, error) {
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return schema.Compile(pb.SchemaFormat(format), message, eventType, definition)
}

// prepareSchema checks a definition before it is registered, and fills in the message's name.
func (s *Shard) prepareSchema(ctx context.Context, r *record.Schema) error {
	v, err := s.validators.compile(ctx, r.Format, r.Message, r.EventType, r.Definition)
	switch {
	case errors.Is(err, schema.ErrUnsupported):
		return api.Errorf(pb.ErrorCode_ERROR_CODE_REGISTER_SCHEMA_UNSUPPORTED_TYPE, "%v: nothing was registered", err)
	case errors.Is(err, schema.ErrInvalid):
		return api.Errorf(pb.ErrorCode_ERROR_CODE_REGISTER_SCHEMA_INVALID, "%s: %v", formatName(r.Format), err)
	case err != nil:
		return err
	}
	r.Message = v.Message()
	return nil
}

// validator returns the validator of an event's schema in a view; nil if it has none.
func (s *Shard) validator(ctx context.Context, view *history.View, org, typ string, e *pb.NewEvent) (*schema.Validator, error) {
	name := history.Schema{Org: org, Type: typ, EventType: e.GetType()}
	name.Major, name.Minor = versionOf(e.GetSchema())
	place := name.Place()
	if v := s.validators.get(place); v != nil {
		return v, nil
	}
	stored, ok, err := view.Schema(org, typ, name.EventType, name.Major, name.Minor)
	if err != nil || !ok {
		return nil, err
	}
	v, err := s.validators.compile(ctx, stored.Format, stored.Message, stored.EventType, stored.Definition)
	if errors.Is(err, schema.ErrInvalid) || errors.Is(err, schema.ErrUnsupported) {
		// Another version of this program registered it.
		return nil, api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL,
			"the schema of %q %d.%d on %s/%s cannot be used by this version: nothing was written; %v", name.EventType, name.Major, name.Minor, org, typ, err)
	}
	if err != nil {
		return nil, err
	}
	s.validators.put(place, len(stored.Definition), v)
	return v, nil
}
