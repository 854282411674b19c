// Command compare measures traffic routers with a host in Go that uses the controller's packages: compare NAME=BINARY...
// Each round starts and calls every router once, so that a slow phase of the machine affects all of them.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
)

const rounds = 7

// rows has the measured quantities in the order of the table.
var rows = []string{"start to handshake", "start to first call", "empty call", "10 KB Rollout", "114 KB Rollout", "10 callers, 10 KB", "memory, MiB"}

func main() {
	measured := map[string]map[string][]float64{}
	var names []string
	for range rounds {
		for _, candidate := range os.Args[1:] {
			name, binary, found := strings.Cut(candidate, "=")
			if !found {
				fail(fmt.Errorf("NAME=BINARY is expected, not %q", candidate))
			}
			if measured[name] == nil {
				measured[name] = map[string][]float64{}
				names = append(names, name)
			}
			for row, value := range round(binary) {
				measured[name][row] = append(measured[name][row], value)
			}
		}
	}
	fmt.Printf("%-22s", fmt.Sprintf("median of %d rounds", rounds))
	for _, name := range names {
		fmt.Printf("%14s", name)
	}
	fmt.Println()
	for _, row := range rows {
		unit := "us"
		if strings.HasPrefix(row, "memory") {
			unit = "  "
		}
		fmt.Printf("%-22s", row)
		for _, name := range names {
			fmt.Printf("%11.1f %s", median(measured[name][row]), unit)
		}
		fmt.Println()
	}
}

// round starts a router, calls it and stops it.
func round(binary string) map[string]float64 {
	found := map[string]float64{}
	begin := time.Now()
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: goplugin.HandshakeConfig{
			ProtocolVersion: 1, MagicCookieKey: "ARGO_ROLLOUTS_RPC_PLUGIN", MagicCookieValue: "trafficrouter",
		},
		Plugins: map[string]goplugin.Plugin{"RpcTrafficRouterPlugin": &rpc.RpcTrafficRouterPlugin{}},
		Cmd:     exec.Command(binary),
		Logger:  hclog.New(&hclog.LoggerOptions{Output: io.Discard}),
	})
	defer client.Kill()
	if _, err := client.Start(); err != nil {
		fail(err)
	}
	found["start to handshake"] = micro(begin)
	protocol, err := client.Client()
	if err != nil {
		fail(err)
	}
	raw, err := protocol.Dispense("RpcTrafficRouterPlugin")
	if err != nil {
		fail(err)
	}
	router := raw.(rpc.TrafficRouterPlugin)
	small, large := rollout(10_000), rollout(114_000)
	set := func(rollout *v1alpha1.Rollout) {
		if err := router.SetWeight(rollout, 20, nil); err.HasError() {
			fail(err)
		}
	}
	router.Type()
	found["start to first call"] = micro(begin)
	set(small)
	found["empty call"] = each(2000, func() { router.Type() })
	found["10 KB Rollout"] = each(500, func() { set(small) })
	found["114 KB Rollout"] = each(200, func() { set(large) })
	found["10 callers, 10 KB"] = each(50, func() {
		var callers sync.WaitGroup
		for range 10 {
			callers.Add(1)
			go func() {
				defer callers.Done()
				set(small)
			}()
		}
		callers.Wait()
	})
	found["memory, MiB"] = memory(client.ReattachConfig().Pid)
	return found
}

// each returns the median duration of a number of calls, in microseconds.
func each(times int, call func()) float64 {
	taken := make([]float64, times)
	for index := range taken {
		begin := time.Now()
		call()
		taken[index] = micro(begin)
	}
	return median(taken)
}

func micro(begin time.Time) float64 { return float64(time.Since(begin).Nanoseconds()) / 1000 }

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// rollout returns a Rollout of about this size as JSON. Its Pods have many environment variables.
func rollout(bytes int) *v1alpha1.Rollout {
	var variables []corev1.EnvVar
	for size := 0; size < bytes; size += 80 {
		name := "VARIABLE_" + strconv.Itoa(size)
		variables = append(variables, corev1.EnvVar{Name: name, Value: strings.Repeat("x", 50)})
	}
	weight := int32(20)
	return &v1alpha1.Rollout{
		ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "shop", UID: "u"},
		Spec: v1alpha1.RolloutSpec{
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Env: variables}}}},
			Strategy: v1alpha1.RolloutStrategy{Canary: &v1alpha1.CanaryStrategy{Steps: []v1alpha1.CanaryStep{{SetWeight: &weight}}}},
		},
	}
}

func memory(pid int) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		fail(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmRSS:"); found {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			if err != nil {
				fail(err)
			}
			return kib / 1024
		}
	}
	return 0
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
