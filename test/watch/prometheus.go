package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	// scrapes and evaluations are how often the real Prometheus does either. A scrape may take as
	// long as the pause between two: on a machine that is busy with other tests, it does.
	scrapes     = time.Second
	evaluations = 500 * time.Millisecond
	// faster is what each "for" of the alerts is divided by.
	faster = 60
	// patience bounds every wait. On an idle machine none takes more than some seconds.
	patience = 90 * time.Second
)

// prometheusServer is a running Prometheus.
type prometheusServer struct {
	url string
	log *output
	// ended is closed once the process has.
	ended chan struct{}
}

// output is what a process writes. Its lock guards the buffer.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// startPrometheus runs a program with the files of a directory, hurried, against other
// targets. It listens on an address and is killed in the test's cleanup, and by the kernel if
// the test dies first.
func startPrometheus(tb testing.TB, program, files, address string, targets []string) *prometheusServer {
	tb.Helper()
	dir := tb.TempDir()
	if err := hurry(files, dir, targets); err != nil {
		tb.Fatal(err)
	}
	p := &prometheusServer{url: "http://" + address, log: &output{}, ended: make(chan struct{})}
	cmd := exec.Command(program, "--config.file", filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", address)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		tb.Fatalf("start %s: %v", program, err)
	}
	// Ends with the process, which the cleanup below kills at the latest.
	go func() {
		_ = cmd.Wait() // the log says why it ended
		close(p.ended)
	}()
	tb.Cleanup(func() {
		_ = cmd.Process.Kill() // the error says that it has ended already
		<-p.ended
		if tb.Failed() {
			tb.Logf("Prometheus logged:\n%s", p.log)
		}
	})
	return p
}

// hurry writes prometheus.yml and alerts.yml of one directory to another: with other targets,
// intervals, and shorter "for", and otherwise as they are.
func hurry(from, to string, targets []string) error {
	err := edit(filepath.Join(from, "prometheus.yml"), filepath.Join(to, "prometheus.yml"), func(file map[string]any) error {
		file["global"] = map[string]any{"scrape_interval": duration(scrapes), "evaluation_interval": duration(evaluations)}
		jobs, _ := file["scrape_configs"].([]any)
		if len(jobs) != 1 {
			return fmt.Errorf("found %d jobs, expected one", len(jobs))
		}
		job, _ := jobs[0].(map[string]any)
		if job["static_configs"] == nil {
			return errors.New("found no static_configs in the job")
		}
		job["static_configs"] = []any{map[string]any{"targets": targets}}
		return nil
	})
	if err != nil {
		return err
	}
	return edit(filepath.Join(from, "alerts.yml"), filepath.Join(to, "alerts.yml"), func(file map[string]any) error {
		groups, _ := file["groups"].([]any)
		for _, g := range groups {
			group, _ := g.(map[string]any)
			rules, _ := group["rules"].([]any)
			for _, r := range rules {
				rule, _ := r.(map[string]any)
				text, ok := rule["for"].(string)
				if !ok {
					continue
				}
				d, err := time.ParseDuration(text)
				if err != nil {
					return err
				}
				rule["for"] = duration(d / faster)
			}
		}
		return nil
	})
}

// duration is one as Prometheus writes it.
func duration(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

func edit(from, to string, change func(map[string]any) error) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	file := map[string]any{}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if err := change(file); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if text, err = yaml.Marshal(file); err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o600)
}

// get asks Prometheus's API.
func (p *prometheusServer) get(ctx context.Context, path string, query url.Values, data any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s %s", path, answer.Status, answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}

// query returns the value of each instance that an expression has one for.
func (p *prometheusServer) query(ctx context.Context, expr string) (map[string]float64, error) {
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any // time and value
		}
	}
	if err := p.get(ctx, "query", url.Values{"query": {expr}}, &data); err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for _, r := range data.Result {
		text, _ := r.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		values[r.Metric["instance"]] = v
	}
	return values, nil
}

// alert is one that Prometheus reports, pending or firing.
type alert struct {
	State               string
	Labels, Annotations map[string]string
}

// firing returns the alerts that fire: the name, and the instance if it is about one.
func (p *prometheusServer) firing(ctx context.Context) (map[string]alert, error) {
	var data struct{ Alerts []alert }
	if err := p.get(ctx, "alerts", nil, &data); err != nil {
		return nil, err
	}
	all := map[string]alert{}
	for _, a := range data.Alerts {
		if a.State != "firing" {
			continue
		}
		name := a.Labels["alertname"]
		if on := a.Labels["instance"]; on != "" {
			name += " " + on
		}
		all[name] = a
	}
	return all, nil
}
