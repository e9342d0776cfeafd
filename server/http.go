package server

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// check is one line of a probe: err is nil if it passes.
type check struct {
	name string
	err  func() error
}

// maxWebConnections bounds the HTTP connections; probes and scrapes need a few.
const maxWebConnections = 256

var errStopping = errors.New("the node is stopping")

// newWeb makes the HTTP server of the probes and of /metrics.
func newWeb(s *Server) *http.Server {
	mux := http.NewServeMux()
	// The process lives as long as it answers: a node that must end (a failed disk) ends
	// itself, and a restart would not help one that only waits for its peers.
	mux.Handle("GET /livez", probe([]check{{"ping", func() error { return nil }}}))
	mux.Handle("GET /readyz", probe([]check{
		{"ping", func() error { return nil }},
		{"shard", s.shardReady},
		{"serving", s.serving},
	}))
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

func (s *Server) shardReady() error {
	st := s.opts.Shard.Status()
	if st.Ready {
		return nil
	}
	leader := "no leader is known"
	if st.LeaderID != "" {
		leader = "the leader is " + st.LeaderID
	}
	return fmt.Errorf("not ready: role %s in term %d, applied %d of %d committed entries, %s",
		st.Role, st.Term, st.AppliedIndex, st.CommitIndex, leader)
}

func (s *Server) serving() error {
	select {
	case <-s.stopping:
		return errStopping
	default:
		return nil
	}
}

// probe answers 200 "ok" if every check passes, else 503; with ?verbose, and in every 503,
// one line a check.
func probe(checks []check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var lines strings.Builder
		status := http.StatusOK
		for _, c := range checks {
			if err := c.err(); err != nil {
				status = http.StatusServiceUnavailable
				fmt.Fprintf(&lines, "[-]%s: %v\n", c.name, err)
			} else {
				fmt.Fprintf(&lines, "[+]%s ok\n", c.name)
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
