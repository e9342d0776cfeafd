package server

import healthpb "google.golang.org/grpc/health/grpc_health_v1"

// LeaderService is the name that the health service answers SERVING for while this node
// serves as leader. The empty name stands for the node itself.
const LeaderService = "tidemark.leader"

// followLeadership keeps the health of LeaderService as the shard's leadership is. New
// starts it; it ends when the server stops.
func (s *Server) followLeadership() {
	defer close(s.followed)
	for {
		leading, changed := s.opts.Shard.Leading()
		state := healthpb.HealthCheckResponse_NOT_SERVING
		if leading {
			state = healthpb.HealthCheckResponse_SERVING
		}
		s.health.SetServingStatus(LeaderService, state)
		select {
		case <-changed:
		case <-s.stopping:
			return
		}
	}
}
