package bench

import (
	"time"
)

// Result is what a run measured.
type Result struct {
	// Rate is successes a second.
	Rate float64 `json:"rate"`
	// Latencies of the successes, from sending to the answer.
	P50MS  float64 `json:"p50_ms"`
	P99MS  float64 `json:"p99_ms"`
	P999MS float64 `json:"p999_ms"`
	// Errors counts failures by Tidemark's code ("2003"), or by gRPC's where the answer is
	// not Tidemark's ("UNAVAILABLE").
	Errors map[string]uint64 `json:"errors"`
	// Count is how many succeeded, Seconds how long was measured.
	Count   uint64  `json:"count"`
	Seconds float64 `json:"seconds"`
}

func newResult(h *histogram, errors map[string]uint64, elapsed time.Duration) Result {
	r := Result{
		P50MS: milliseconds(h.quantile(0.50)), P99MS: milliseconds(h.quantile(0.99)), P999MS: milliseconds(h.quantile(0.999)),
		Errors: errors, Count: h.count.Load(), Seconds: elapsed.Seconds(),
	}
	if r.Seconds > 0 {
		r.Rate = float64(r.Count) / r.Seconds
	}
	return r
}

// milliseconds keeps three decimals, microseconds, which is what a clock gives.
func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}
