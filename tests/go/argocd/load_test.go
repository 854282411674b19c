package host

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	loadTime     = flag.Duration("load", 5*time.Second, "how long TestLoad polls")
	loadInterval = flag.Duration("load-interval", time.Second, "how often each of its callers polls")
)

// As many callers as ApplicationSets are ever reconciled at once, each asking again and again for what all ask for.
func TestLoad(t *testing.T) {
	const callers = 60
	r := openRegistry(t)
	digest := r.push(t, "myorg/front", "feature-1")
	g := start(t, r.config())
	var calls, failures atomic.Int64
	round := func() {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				calls.Add(1)
				if sets, err := g.list(t, front); err != nil || !strings.Contains(fmt.Sprint(sets), digest) {
					failures.Add(1)
					t.Errorf("listed %v, %v", sets, err)
				}
			})
		}
		all.Wait()
	}
	round()
	before := residentMemory(t, g)
	started := time.Now()
	for tick := time.NewTicker(*loadInterval); time.Since(started) < *loadTime && !t.Failed(); <-tick.C {
		round()
	}
	after := residentMemory(t, g)
	queries := len(r.manifests())
	fmt.Printf("load: %d calls in %.0f s, %d failed, %d queries of the registry, resident memory %d KiB before and %d KiB after\n",
		calls.Load(), time.Since(started).Seconds(), failures.Load(), queries, before, after)
	// Answers are kept for 15 s.
	if limit := 2 + int(time.Since(started)/(15*time.Second)); queries > limit {
		t.Errorf("the registry was asked %d times, want at most %d", queries, limit)
	}
	if after > before+8<<10 {
		t.Error("the memory grows")
	}
}

// residentMemory is in KiB.
func residentMemory(t testing.TB, g *generator) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.process.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatal("there is no VmRSS")
	return 0
}
