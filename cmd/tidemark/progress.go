package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress shows how far a command is, on a terminal only. The zero value shows nothing.
type progress struct {
	bar *progressbar.ProgressBar
	// said is when the text was last changed: making it for each of 50,000 rows a second
	// would cost more than the rows.
	said time.Time
}

// progressInterval is how often a bar is drawn.
const progressInterval = 100 * time.Millisecond

// newProgress makes a bar on w, if that is a terminal. size is in bytes; -1 = not known.
func newProgress(w io.Writer, size int64) *progress {
	if !isTerminal(w) {
		return &progress{}
	}
	return &progress{bar: progressbar.NewOptions64(size,
		progressbar.OptionSetWriter(w),
		progressbar.OptionShowBytes(true),
		progressbar.OptionSetWidth(20),
		progressbar.OptionThrottle(progressInterval),
		progressbar.OptionSetPredictTime(size > 0),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionUseANSICodes(true),
	)}
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// set says how many bytes are done. Like say, it is not called from two goroutines at once.
func (p *progress) set(bytes int64) {
	if p.bar != nil {
		_ = p.bar.Set64(bytes)
	}
}

// of says how many bytes are done of how many, of which the first knows nothing yet: 0.
func (p *progress) of(done, total int64) {
	if p.bar == nil {
		return
	}
	if total > 0 && p.bar.GetMax64() != total {
		p.bar.ChangeMax64(total)
	}
	p.set(done)
}

// say puts a text beside the bar. It is not called from two goroutines at once.
func (p *progress) say(text func() string) {
	if p.bar == nil {
		return
	}
	if now := time.Now(); now.Sub(p.said) >= progressInterval {
		p.said = now
		p.bar.Describe(text())
	}
}

// clear removes the bar, for lines that are to stay; it comes back by itself.
func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
