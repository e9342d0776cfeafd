package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/tidemark-db/tidemark/internal/inspect"
)

// What inspect prints as JSON. As in everything else that is printed so, 64-bit integers are
// strings, and hashes are in hex but in batches, which are the proto's.

type entryJSON struct {
	Index      uint64        `json:"index,string"`
	Term       uint64        `json:"term,string"`
	Type       string        `json:"type"`
	AppendedAt time.Time     `json:"appended_at"`
	File       string        `json:"file"`
	Offset     int64         `json:"offset,string"`
	Size       int           `json:"size"`
	Applied    bool          `json:"applied"`
	Ticket     uint64        `json:"ticket,string"`
	AdmittedIn uint64        `json:"admitted_in_term,string"`
	Requests   []requestJSON `json:"requests,omitempty"`
	Members    []memberJSON  `json:"members,omitempty"`
}

type requestJSON struct {
	Kind        string        `json:"kind"`
	ClientID    string        `json:"client_id,omitempty"`
	CommittedAt time.Time     `json:"committed_at"`
	Writes      []writtenJSON `json:"writes,omitempty"`
	// Of a trim, and of a delete.
	KeepFrom uint64       `json:"keep_from_version,string,omitempty"`
	Targets  []targetJSON `json:"aggregates,omitempty"`
	Schema   string       `json:"schema,omitempty"`
}

// targetJSON is an aggregate that a trim or a delete is about.
type targetJSON struct {
	Aggregate       string  `json:"aggregate"`
	ExpectedVersion *uint64 `json:"expected_version,string,omitempty"`
	AllowRecreate   bool    `json:"allow_recreate,omitempty"`
	RestartVersions bool    `json:"restart_versions,omitempty"`
	ForgetWriters   bool    `json:"forget_writers,omitempty"`
}

type writtenJSON struct {
	Aggregate         string      `json:"aggregate"`
	AllowCreate       bool        `json:"allow_create"`
	Enforce           bool        `json:"enforce_idempotency"`
	ExpectedVersion   *uint64     `json:"expected_version,string,omitempty"`
	PreviousClientSeq *uint64     `json:"previous_client_seq,string,omitempty"`
	AfterSeq          *uint64     `json:"after_seq,string,omitempty"`
	SchemaRevision    *uint64     `json:"schema_revision,string,omitempty"`
	Events            []eventJSON `json:"events"`
}

type eventJSON struct {
	ClientSeq   uint64 `json:"client_seq,string"`
	EventID     string `json:"event_id"`
	Type        string `json:"type"`
	ContentHash string `json:"content_hash"`
}

func (o *entryJSON) setCommand(c *inspect.Command) {
	o.Ticket, o.AdmittedIn = c.Ticket, c.Term
	for i := range c.Requests {
		r := &c.Requests[i]
		q := requestJSON{Kind: r.Kind.String(), ClientID: r.Client, CommittedAt: utc(r.CommittedAt)}
		if r.Trim != nil {
			q.KeepFrom = r.Trim.KeepFrom
			q.Targets = append(q.Targets, targetJSON{Aggregate: r.Trim.Aggregate.String(), ExpectedVersion: r.Trim.Expected})
		}
		for _, d := range r.Deletes {
			q.Targets = append(q.Targets, targetJSON{d.Aggregate.String(), d.Expected, d.Recreatable, d.Restart, d.ForgetWriters})
		}
		if s := r.Schema; s != nil {
			q.Schema = fmt.Sprintf("%s/%s/%s %d.%d", s.Org, s.Type, s.EventType, s.Major, s.Minor)
		}
		for j := range r.Writes {
			w := &r.Writes[j]
			out := writtenJSON{Aggregate: w.Aggregate.String(), AllowCreate: w.AllowCreate, Enforce: w.Enforce, ExpectedVersion: w.Expected, PreviousClientSeq: w.Previous, AfterSeq: w.After, SchemaRevision: w.SchemaRevision}
			for k := range w.Events {
				e := &w.Events[k]
				out.Events = append(out.Events, eventJSON{ClientSeq: e.ClientSeq, EventID: e.EventID, Type: e.Message.GetType(), ContentHash: fmt.Sprintf("%x", e.Content)})
			}
			q.Writes = append(q.Writes, out)
		}
		o.Requests = append(o.Requests, q)
	}
}

// describeRequests is the content of an entry in one line.
func describeRequests(requests []requestJSON) string {
	var out []string
	for _, r := range requests {
		for _, w := range r.Writes {
			out = append(out, fmt.Sprintf("%s by %s %d", w.Aggregate, r.ClientID, w.Events[0].ClientSeq))
		}
		for _, t := range r.Targets {
			out = append(out, r.Kind+" "+t.Aggregate)
		}
		if r.Schema != "" {
			out = append(out, r.Kind+" "+r.Schema)
		}
	}
	return strings.Join(out, ", ")
}

func utc(ns int64) time.Time { return time.Unix(0, ns).UTC() }

type memberJSON struct {
	NodeID   string `json:"node_id"`
	ServerID string `json:"server_id"`
	Address  string `json:"raft_address"`
	Voter    bool   `json:"voter"`
}

func membersJSON(members []inspect.Member) (out []memberJSON) {
	for _, m := range members {
		out = append(out, memberJSON{NodeID: m.NodeID(), ServerID: m.ID, Address: m.Address, Voter: m.Suffrage == 0})
	}
	return out
}

func describeMembers(members []inspect.Member) string {
	var out []string
	for _, m := range members {
		text := m.ID + " at " + m.Address
		if m.Suffrage != 0 {
			text += " (no vote)"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

type batchJSON struct {
	Source string          `json:"source"`
	Batch  json.RawMessage `json:"batch"`
}

type headJSON struct {
	Source            string    `json:"source"`
	Aggregate         string    `json:"aggregate"`
	Version           uint64    `json:"version,string"`
	Incarnation       uint32    `json:"incarnation"`
	FirstVersion      uint64    `json:"first_version,string"`
	FirstLivePosition uint64    `json:"first_live_position,string"`
	EventCount        uint64    `json:"event_count,string"`
	CreatedAt         time.Time `json:"created_at"`
	LastCommittedAt   time.Time `json:"last_committed_at"`
	Position          uint64    `json:"position,string"`
	LastClientID      string    `json:"last_client_id"`
	LastMark          uint64    `json:"last_mark,string"`
	Deleted           bool      `json:"deleted"`
	AllowRecreate     bool      `json:"allow_recreate"`
	RestartVersions   bool      `json:"restart_versions"`
	ChainHash         string    `json:"chain_hash"`
}

func headOf(h *inspect.Head, in inspect.Source) headJSON {
	return headJSON{
		Source: in.String(), Aggregate: h.Aggregate.String(), Version: h.Version, Incarnation: h.Incarnation, FirstVersion: h.Floor,
		FirstLivePosition: h.FirstLive, EventCount: h.EventCount, CreatedAt: utc(h.CreatedAt), LastCommittedAt: utc(h.CommittedAt), Position: h.Position,
		LastClientID: h.LastClient, LastMark: h.LastMark, Deleted: h.Deleted, AllowRecreate: h.Recreatable, RestartVersions: h.Restart,
		ChainHash: fmt.Sprintf("%x", h.Chain),
	}
}

type rowJSON struct {
	Source              string    `json:"source"`
	Aggregate           string    `json:"aggregate"`
	ClientID            string    `json:"client_id"`
	ClientSeq           uint64    `json:"client_seq,string"`
	Position            uint64    `json:"position,string"`
	Version             uint64    `json:"version,string"`
	Incarnation         uint32    `json:"incarnation"`
	EventIndex          uint32    `json:"event_index"`
	EventNumber         uint64    `json:"event_number,string"`
	CommittedAt         time.Time `json:"committed_at"`
	FirstSeq            uint64    `json:"batch_first_client_seq,string"`
	LastSeq             uint64    `json:"batch_last_client_seq,string"`
	EventCount          uint32    `json:"batch_event_count"`
	CommitFirstPosition uint64    `json:"commit_first_position,string"`
	CommitCount         uint32    `json:"commit_count"`
	EventID             string    `json:"event_id"`
	ContentHash         string    `json:"content_hash"`
	Repeated            bool      `json:"repeated"`
}

func rowOf(r *inspect.Row, in inspect.Source) rowJSON {
	return rowJSON{
		Source: in.String(), Aggregate: r.Aggregate.String(), ClientID: r.Client, ClientSeq: r.ClientSeq, Position: r.Position, Version: r.Version,
		Incarnation: r.Incarnation, EventIndex: r.EventIndex, EventNumber: r.EventNumber, CommittedAt: utc(r.CommittedAt), FirstSeq: r.FirstSeq,
		LastSeq: r.LastSeq, EventCount: r.EventCount, CommitFirstPosition: r.CommitFirst, CommitCount: r.CommitCount, EventID: r.EventID,
		ContentHash: fmt.Sprintf("%x", r.Content), Repeated: r.Repeated,
	}
}

type changeJSON struct {
	Source      string `json:"source"`
	Position    uint64 `json:"position,string"`
	Kind        string `json:"kind"`
	Aggregate   string `json:"aggregate"`
	Incarnation uint32 `json:"incarnation"`
	Version     uint64 `json:"version,string"`
}

// counted is how many of something there are.
type counted struct {
	InHistory uint64 `json:"history,string"`
	InTail    uint64 `json:"tail,string"`
}

// String tells the two apart.
func (c counted) String() string {
	if c.InTail == 0 {
		return fmt.Sprint(c.InHistory)
	}
	return fmt.Sprintf("%d, and %d in entries that the history lacks", c.InHistory, c.InTail)
}

type summaryJSON struct {
	Raft         raftJSON `json:"raft"`
	Aggregates   uint64   `json:"aggregates,string"`
	Batches      counted  `json:"batches"`
	Writers      counted  `json:"writer_rows"`
	LastPosition uint64   `json:"last_position,string"`
	Digest       string   `json:"digest"`
}

type raftJSON struct {
	NodeID             string         `json:"node_id"`
	Generation         string         `json:"generation"`
	State              string         `json:"state"`
	ClusterID          string         `json:"cluster_id"`
	Timeline           string         `json:"timeline"`
	CurrentTerm        uint64         `json:"current_term,string"`
	VoteTerm           uint64         `json:"vote_term,string"`
	Vote               string         `json:"vote"`
	FirstIndex         uint64         `json:"first_index,string"`
	LastIndex          uint64         `json:"last_index,string"`
	LastTerm           uint64         `json:"last_term,string"`
	SyncedIndex        uint64         `json:"synced_index,string"`
	AppliedIndex       uint64         `json:"history_index,string"`
	AppliedPosition    uint64         `json:"history_position,string"`
	ConfigurationIndex uint64         `json:"configuration_index,string"`
	Members            []memberJSON   `json:"members"`
	Snapshots          []snapshotJSON `json:"snapshots"`
}

type snapshotJSON struct {
	ID              string `json:"id"`
	Index           uint64 `json:"index,string"`
	Term            uint64 `json:"term,string"`
	AppliedIndex    uint64 `json:"applied_index,string"`
	CheckpointIndex uint64 `json:"checkpoint_index,string"`
	Received        bool   `json:"received"`
	Pending         bool   `json:"pending"`
}

func raftOf(r *inspect.Raft) raftJSON {
	out := raftJSON{
		CurrentTerm: r.CurrentTerm, VoteTerm: r.VoteTerm, Vote: r.Vote, FirstIndex: r.FirstIndex, LastIndex: r.LastIndex, LastTerm: r.LastTerm,
		SyncedIndex: r.SyncedIndex, AppliedIndex: r.Applied.Index, AppliedPosition: r.Applied.Position, ConfigurationIndex: r.ConfigurationIndex,
		Members: membersJSON(r.Members), Snapshots: []snapshotJSON{},
	}
	if id := r.Identity; id != nil {
		out.NodeID, out.Generation, out.State, out.ClusterID, out.Timeline = id.NodeID, id.Generation, id.State, id.ClusterID, id.Timeline
	}
	for i := range r.Snapshots {
		m := r.Snapshots[i].Meta
		out.Snapshots = append(out.Snapshots, snapshotJSON{m.ID, m.Index, m.Term, m.AppliedIndex, m.CheckpointIndex, m.Received, m.Pending})
	}
	return out
}

func raftFields(r raftJSON) []any {
	vote := "none"
	if r.Vote != "" {
		vote = fmt.Sprintf("%s in term %d", r.Vote, r.VoteTerm)
	}
	pairs := []any{
		"node", fmt.Sprintf("%s (generation %s, %s)", r.NodeID, r.Generation, r.State), "cluster", r.ClusterID, "timeline", r.Timeline,
		"term", r.CurrentTerm, "vote", vote,
		"log", fmt.Sprintf("entries %d to %d (term %d), flushed to %d", r.FirstIndex, r.LastIndex, r.LastTerm, r.SyncedIndex),
		"history", fmt.Sprintf("up to entry %d, position %d", r.AppliedIndex, r.AppliedPosition),
	}
	for _, m := range r.Members {
		voter := "voter"
		if !m.Voter {
			voter = "no vote"
		}
		pairs = append(pairs, "member", fmt.Sprintf("%s at %s, %s (entry %d)", m.ServerID, m.Address, voter, r.ConfigurationIndex))
	}
	for _, s := range r.Snapshots {
		text := fmt.Sprintf("%s, up to entry %d", s.ID, s.AppliedIndex)
		if s.Received {
			text += ", from another node"
		}
		if s.Pending {
			text += ", not restored yet"
		}
		pairs = append(pairs, "snapshot", text)
	}
	return pairs
}
