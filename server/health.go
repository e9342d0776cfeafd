package server

import (
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// LeaderService is the name that the health service answers SERVING for while this node
// serves as leader.
//
// The empty name stands for the node itself: SERVING while it is a member of a cluster, from
// which on it answers reads, and says where the leader is. It does not depend on there being
// a leader, or clients that choose nodes by it could read nowhere without one.
const LeaderService = "tidemark.leader"

// memberEvery is how often the node looks whether it has become a member.
const memberEvery = 200 * time.Millisecond

// followLeadership keeps the health of LeaderService as the shard's leadership is, and the
// node's own. New starts it; it ends when the server stops.
func (s *Server) followLeadership() {
	defer close(s.followed)
	ticker := time.NewTicker(memberEvery)
	defer ticker.Stop()
	for {
		_, changed := s.opts.Shard.Leading()
		var look <-chan time.Time
		if !s.setHealth() {
			look = ticker.C
		}
		select {
		case <-changed:
		case <-look:
		case <-s.stopping:
			return
		}
	}
}

// setHealth says how the node is now, and returns whether it is a member of a cluster.
func (s *Server) setHealth() (member bool) {
	leading, _ := s.opts.Shard.Leading()
	member = s.opts.Shard.Status().Role != "joining"
	s.health.SetServingStatus(LeaderService, serving(leading))
	s.health.SetServingStatus("", serving(member))
	return member
}

func serving(yes bool) healthpb.HealthCheckResponse_ServingStatus {
	if yes {
		return healthpb.HealthCheckResponse_SERVING
	}
	return healthpb.HealthCheckResponse_NOT_SERVING
}
