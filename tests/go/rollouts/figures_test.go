package host

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
)

// TestFigures prints measurements. It asserts none of them, because a slow machine is not a bug. The test is not parallel, so
// it runs alone.
func TestFigures(t *testing.T) {
	start := measure(100, func() time.Duration { return handshake(t) })
	rollout := realisticRollout(t)
	size, err := json.Marshal(rollout)
	if err != nil {
		t.Fatal(err)
	}
	succeeds(t, "SetWeight", router(t, figures).SetWeight(rollout, 25, nil))
	before := files(t, figures)["shop.yaml"]
	pass := measure(500, func() time.Duration { return steadyPass(t, rollout) })
	if after := files(t, figures)["shop.yaml"]; after != before {
		t.Errorf("a steady pass wrote %s", after)
	}
	fmt.Printf("figure: start to handshake line: %s\n", start)
	handle := router(t, figures)
	empty := measure(500, func() time.Duration {
		begin := time.Now()
		handle.Type()
		return time.Since(begin)
	})
	fmt.Printf("figure: empty call: %s\n", empty)
	fmt.Printf("figure: steady pass, Rollout of %d KiB as JSON: %s\n", len(size)/1024, pass)
}

// handshake returns the time from the start of the process to its handshake line.
func handshake(t testing.TB) time.Duration {
	t.Helper()
	process := exec.Command(environment.binary, "--route-tables-dir", tablesOf(figures))
	process.Env = append(environment.variables, "ARGO_ROLLOUTS_RPC_PLUGIN=trafficrouter",
		"PLUGIN_PROTOCOL_VERSIONS=1", "PLUGIN_MIN_PORT=10000", "PLUGIN_MAX_PORT=25000", "TMPDIR="+t.TempDir())
	stdout, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	taken := time.Since(begin)
	if err != nil || !strings.HasPrefix(line, "1|1|unix|") {
		t.Errorf("handshake line %q: %v", line, err)
	}
	if err := process.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = process.Wait() // The status of a killed process has no meaning.
	return taken
}

// steadyPass makes the calls of a reconcile without a change of the weight; router sends the ping.
func steadyPass(t testing.TB, rollout *v1alpha1.Rollout) time.Duration {
	t.Helper()
	begin := time.Now()
	handle := router(t, figures)
	handle.Type()
	succeeds(t, "RemoveManagedRoutes", handle.RemoveManagedRoutes(rollout))
	succeeds(t, "UpdateHash", handle.UpdateHash(rollout, "6d4f8b7c5", "7c9d6b5f4", nil))
	succeeds(t, "SetWeight", handle.SetWeight(rollout, 25, nil))
	verified, err := handle.VerifyWeight(rollout, 25, nil)
	verifies(t, "VerifyWeight", verified, err)
	return time.Since(begin)
}

// distribution is a sorted list of durations.
type distribution []time.Duration

func measure(times int, action func() time.Duration) distribution {
	taken := make(distribution, times)
	for index := range taken {
		taken[index] = action()
	}
	slices.Sort(taken)
	return taken
}

func (d distribution) String() string {
	return fmt.Sprintf("n=%d median=%s p99=%s", len(d), d.percentile(50), d.percentile(99))
}

func (d distribution) percentile(percent int) time.Duration {
	return d[(len(d)-1)*percent/100].Round(time.Microsecond)
}
