package metrics

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/process"
)

// BenchmarkScrape measures a scrape of a node that 256 clients write to as fast as they can, and
// what it costs them:
//
//	go test ./test/metrics -run '^$' -bench Scrape -benchtime 300x
//
// ns/op is one scrape, over the network and read to the end; p99-ms and max-ms are the slow ones,
// which are to stay below 50. One scrape follows on the other without a pause, hundreds of times as
// often as Prometheus asks. appends/s is the rate meanwhile and unscraped/s the one before.
func BenchmarkScrape(b *testing.B) {
	n := process.Start(b, process.Options{DataDir: b.TempDir()})
	address, err := n.HTTPAddress(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	client := pb.NewEventStoreServiceClient(n.Dial(b))
	ctx, stop := context.WithCancel(b.Context())
	var done atomic.Int64
	var clients sync.WaitGroup
	for c := range 256 {
		clients.Go(func() { // ends with ctx
			for seq := uint64(1); ; seq++ {
				_, err := client.Append(ctx, appendOf(fmt.Sprintf("%d-%d", c, seq%100), fmt.Sprint("c", c), seq))
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	defer clients.Wait()
	defer stop()
	rate := func(during func()) float64 {
		before, began := done.Load(), time.Now()
		during()
		return float64(done.Load()-before) / time.Since(began).Seconds()
	}
	wait := func(d time.Duration) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		<-timer.C
	}
	wait(5 * time.Second) // connections, caches and memtables are warm
	unscraped := rate(func() { wait(10 * time.Second) })

	var took []time.Duration
	b.ResetTimer()
	scraped := rate(func() {
		for range b.N {
			began := time.Now()
			resp, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				b.Fatal(resp.Status, err)
			}
			_ = resp.Body.Close() // it was read
			took = append(took, time.Since(began))
		}
	})
	b.StopTimer()
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
	b.ReportMetric(ms(took[len(took)-1]), "max-ms")
	b.ReportMetric(scraped, "appends/s")
	b.ReportMetric(unscraped, "unscraped/s")
}
