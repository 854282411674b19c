package host

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	loadTime     = flag.Duration("load", 5*time.Second, "duration of TestLoad")
	loadInterval = flag.Duration("load-interval", time.Second, "interval between the calls of each caller")
)

// The number of callers is the highest number of ApplicationSets that are reconciled at once. Each polls one source.
func TestLoad(t *testing.T) {
	const callers = 60
	r := openRegistry(t)
	digest := r.push(t, "myorg/front", "feature-1")
	cluster := newAPIServer(t, table(atRest))
	cluster.up.Store(true)
	g := start(t, r.config()+hello+glooRoutes, cluster.kubeconfig)
	sources := []struct{ parameters, part string }{
		{`{"source": "hello"}`, "val1"},
		{front, digest},
		{`{"source": "gloo-routes", "routeTableSelector": {"labels": {"app": "shop"}}}`, "shop.example.com"},
	}
	var mutex sync.Mutex
	var times []time.Duration
	failures := 0
	round := func() {
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				source := sources[i%len(sources)]
				asked := time.Now()
				sets, err := g.list(t, source.parameters)
				took := time.Since(asked)
				mutex.Lock()
				defer mutex.Unlock()
				times = append(times, took)
				if err != nil || !strings.Contains(fmt.Sprint(sets), source.part) {
					failures++
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
	slices.Sort(times)
	fmt.Printf("load: %d calls in %.0f s, %d failed, half within %s, 99 of 100 within %s; "+
		"the registry was asked %d times, the API server %d; resident memory %d KiB before and %d KiB after\n",
		len(times), time.Since(started).Seconds(), failures, times[len(times)/2], times[len(times)*99/100],
		queries, cluster.asked.Load(), before, after)
	// Answers are cached for 15 s.
	if limit := 2 + int(time.Since(started)/(15*time.Second)); queries > limit {
		t.Errorf("the registry was asked %d times, want at most %d", queries, limit)
	}
	if after > before+8<<10 {
		t.Error("the memory grows")
	}
}

// residentMemory returns the resident memory of the process in KiB.
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
