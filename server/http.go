package server

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/replication"
)

// maxWebConnections bounds the HTTP connections; probes and scrapes need a few.
const maxWebConnections = 256

var errStopping = errors.New("the node is stopping")

// newWeb makes the HTTP server of the probes and of /metrics.
func newWeb(s *Server) *http.Server {
	mux := http.NewServeMux()
	// The process lives as long as it answers: a node that must end (a failed disk) ends
	// itself, and a restart would not help one that only waits for its peers.
	mux.Handle("GET /livez", probe(func() []replication.Check { return []replication.Check{ping()} }))
	mux.Handle("GET /readyz", probe(s.readyChecks))
	mux.Handle("GET /leaderz", probe(s.leaderChecks))
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.opts.Registry, promhttp.HandlerOpts{
		ErrorLog: zap.NewStdLog(s.opts.Logger),
		Timeout:  10 * time.Second,
	}))
	return &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          zap.NewStdLog(s.opts.Logger),
	}
}

// HTTPHandler is what ServeWeb serves.
func (s *Server) HTTPHandler() http.Handler { return s.web.Handler }

// ping passes whenever it is asked.
func ping() replication.Check { return replication.Check{Name: "ping"} }

// readyChecks: the node leads or follows a leader, is as far as that one, and takes calls. A
// follower is ready too: it serves reads, and sends writers to the leader.
func (s *Server) readyChecks() []replication.Check {
	checks := append([]replication.Check{ping()}, s.opts.Shard.Checks()...)
	return append(checks, s.serving())
}

// leaderChecks: the node serves as leader.
func (s *Server) leaderChecks() []replication.Check {
	leader := replication.Check{Name: "leader"}
	if leading, _ := s.opts.Shard.Leading(); !leading {
		st := s.opts.Shard.Status()
		switch {
		case st.LeaderID == "":
			leader.Err = errors.New("this node does not serve as leader, and knows none")
		case st.LeaderID == st.NodeID:
			leader.Err = errors.New("this node leads, but does not serve yet, or not any more")
		default:
			leader.Err = fmt.Errorf("this node does not serve as leader; the leader is %s at %s", st.LeaderID, cmp.Or(st.LeaderAddress, "an address that is not known yet"))
		}
	}
	return []replication.Check{ping(), leader, s.serving()}
}

func (s *Server) serving() replication.Check {
	c := replication.Check{Name: "serving"}
	select {
	case <-s.stopping:
		c.Err = errStopping
	default:
	}
	return c
}

// probe answers 200 "ok" if every check passes or is tolerated, else 503; with ?verbose, and
// in every 503, one line a check.
func probe(checks func() []replication.Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var lines strings.Builder
		status := http.StatusOK
		for _, c := range checks() {
			switch {
			case c.Err == nil:
				fmt.Fprintf(&lines, "[+]%s ok\n", c.Name)
			case c.Tolerated:
				fmt.Fprintf(&lines, "[+]%s ok, but: %v\n", c.Name, c.Err)
			default:
				status = http.StatusServiceUnavailable
				fmt.Fprintf(&lines, "[-]%s: %v\n", c.Name, c.Err)
			}
		}
		text := "ok\n"
		if status != http.StatusOK || r.URL.Query().Has("verbose") {
			text = lines.String()
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text)) // a prober that has gone needs no answer
	})
}
