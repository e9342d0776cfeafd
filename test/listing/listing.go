package listing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// The names of orgs and types: those of what stays, and others around them that come and go.
var (
	orgs  = []string{"b", "d"}
	types = []string{"t", "u"}
	other = []string{"a", "b", "bb", "c", "d", "e"}
)

const (
	stayPerType = 12
	// callTimeout bounds one call: a node may be dead.
	callTimeout = 2 * time.Second
)

// Stays is what exists throughout a test: nobody writes to it or deletes it.
type Stays struct {
	live, deleted map[string]*pb.GetAggregateResponse
}

func name(k *pb.AggregateKey) string { return k.GetOrg() + "/" + k.GetType() + "/" + k.GetId() }

// Fill makes what stays: of each type some aggregates, every third of them deleted.
func Fill(ctx context.Context, client pb.EventStoreServiceClient) (*Stays, error) {
	s := &Stays{map[string]*pb.GetAggregateResponse{}, map[string]*pb.GetAggregateResponse{}}
	for _, org := range orgs {
		for _, typ := range types {
			for i := range stayPerType {
				k := &pb.AggregateKey{Org: org, Type: typ, Id: fmt.Sprintf("%02d-stays", i)}
				if err := write(ctx, client, k, 1); err != nil {
					return nil, err
				}
				into := s.live
				if i%3 == 0 {
					into = s.deleted
					if err := remove(ctx, client, k, i%2 == 0); err != nil {
						return nil, err
					}
				}
				got, err := client.GetAggregate(ctx, &pb.GetAggregateRequest{Aggregate: k})
				if err != nil {
					return nil, err
				}
				into[name(k)] = got
			}
		}
	}
	return s, nil
}

func write(ctx context.Context, client pb.EventStoreServiceClient, k *pb.AggregateKey, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := client.Append(ctx, &pb.AppendRequest{ClientId: "w", Writes: []*pb.Write{{
		Aggregate: k, AllowCreate: true, Events: []*pb.NewEvent{{ClientSeq: seq, Type: "T"}},
	}}})
	return err
}

func remove(ctx context.Context, client pb.EventStoreServiceClient, k *pb.AggregateKey, restart bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := client.Delete(ctx, &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: k, AllowRecreate: true, RestartVersions: restart}}})
	return err
}

// Churn creates, deletes and recreates aggregates around what stays until ctx is done. What
// becomes of a call that fails is not asked.
func Churn(ctx context.Context, client pb.EventStoreServiceClient, seed uint64, did func()) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for seq := uint64(1); ctx.Err() == nil; seq++ {
		k := &pb.AggregateKey{Org: other[rng.IntN(len(other))], Type: other[rng.IntN(len(other))], Id: fmt.Sprintf("%02d-x%d", rng.IntN(stayPerType), rng.IntN(4))}
		if rng.IntN(2) == 0 {
			k.Type = types[rng.IntN(len(types))]
		}
		var err error
		if rng.IntN(3) == 0 {
			err = remove(ctx, client, k, rng.IntN(2) == 0)
		} else {
			err = write(ctx, client, k, seq)
		}
		if err == nil {
			did()
		}
	}
}

// Request draws what to list.
func Request(rng *rand.Rand) *pb.ListAggregatesRequest {
	req := &pb.ListAggregatesRequest{PageSize: uint32(1 + rng.IntN(7)), IncludeDeleted: rng.IntN(2) == 0}
	depth := rng.IntN(4)
	if depth > 0 {
		req.Org = orgs[rng.IntN(len(orgs))]
	}
	if depth > 1 {
		req.Type = types[rng.IntN(len(types))]
	}
	if depth > 2 {
		req.IdPrefix = fmt.Sprint(rng.IntN(2))
	}
	return req
}

// List reads all pages of a list and returns what is wrong with them. Between two pages it calls
// between, if that is set, and goes on with the client that it returns.
func (s *Stays) List(ctx context.Context, client pb.EventStoreServiceClient, req *pb.ListAggregatesRequest, between func(page int) pb.EventStoreServiceClient) error {
	req = proto.CloneOf(req)
	seen := map[string]*pb.GetAggregateResponse{}
	last := ""
	for page := 1; ; page++ {
		resp, err := client.ListAggregates(ctx, req)
		if err != nil {
			return fmt.Errorf("page %d: %w", page, err)
		}
		if n := len(resp.GetAggregates()); n > int(req.GetPageSize()) {
			return fmt.Errorf("page %d has %d aggregates, %d were asked for", page, n, req.GetPageSize())
		}
		for _, a := range resp.GetAggregates() {
			k := a.GetAggregate()
			if key := strings.Join([]string{k.GetOrg(), k.GetType(), k.GetId()}, "\x00"); key <= last {
				return fmt.Errorf("page %d: %s comes behind %q", page, name(k), last)
			} else {
				last = key
			}
			if req.GetOrg() != "" && k.GetOrg() != req.GetOrg() || req.GetType() != "" && k.GetType() != req.GetType() || !strings.HasPrefix(k.GetId(), req.GetIdPrefix()) {
				return fmt.Errorf("page %d: %s is none of %v", page, name(k), req)
			}
			if a.GetDeleted() && !req.GetIncludeDeleted() {
				return fmt.Errorf("page %d: %s is deleted", page, name(k))
			}
			seen[name(k)] = a
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			break
		}
		if between != nil {
			client = between(page)
		}
	}
	expected := 0
	check := func(all map[string]*pb.GetAggregateResponse) error {
		for n, want := range all {
			k := want.GetAggregate()
			if req.GetOrg() != "" && k.GetOrg() != req.GetOrg() || req.GetType() != "" && k.GetType() != req.GetType() || !strings.HasPrefix(k.GetId(), req.GetIdPrefix()) {
				continue
			}
			expected++
			if got := seen[n]; !proto.Equal(got, want) {
				return fmt.Errorf("list of %v: %s: found %v, expected %v", req, n, got, want)
			}
		}
		return nil
	}
	err := check(s.live)
	if err == nil && req.GetIncludeDeleted() {
		err = check(s.deleted)
	}
	if err == nil && expected == 0 {
		err = fmt.Errorf("list of %v: expected something to stay", req)
	}
	return err
}

// Names reads the orgs, and the types of each org that stays, in pages of a size.
func (s *Stays) Names(ctx context.Context, client pb.EventStoreServiceClient, size uint32) error {
	all := func(what string, stays []string, page func(token string) ([]string, string, error)) error {
		var got []string
		for token, first := "", true; first || token != ""; first = false {
			names, next, err := page(token)
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			got, token = append(got, names...), next
		}
		if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
			return fmt.Errorf("%s: found %q, expected each once, in order", what, got)
		}
		for _, n := range stays {
			if !slices.Contains(got, n) {
				return fmt.Errorf("%s: found %q, expected %q among them", what, got, n)
			}
		}
		return nil
	}
	err := all("orgs", orgs, func(token string) ([]string, string, error) {
		resp, err := client.ListOrgs(ctx, &pb.ListOrgsRequest{PageSize: size, PageToken: token})
		return resp.GetOrgs(), resp.GetNextPageToken(), err
	})
	for _, org := range orgs {
		if err == nil {
			err = all("types of "+org, types, func(token string) ([]string, string, error) {
				resp, err := client.ListTypes(ctx, &pb.ListTypesRequest{Org: org, PageSize: size, PageToken: token})
				return resp.GetTypes(), resp.GetNextPageToken(), err
			})
		}
	}
	return err
}
