// Command broken is a plugin with one fault, `broken KIND FAULT`, that the conformance kit must find. Without a fault it is
// correct. Mistakes of a plugin's author use the real go-plugin server, violations of the protocol a separate one.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	goplugin "github.com/hashicorp/go-plugin"

	metricrpc "github.com/argoproj/argo-rollouts/metricproviders/plugin/rpc"
	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	steprpc "github.com/argoproj/argo-rollouts/rollout/steps/plugin/rpc"
	routerrpc "github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
)

const cookie = "ARGO_ROLLOUTS_RPC_PLUGIN"

var (
	fault string
	held  []byte
	named atomic.Int64
	busy  sync.Mutex
)

func main() {
	kind := os.Args[1]
	if len(os.Args) > 2 {
		fault = os.Args[2]
	}
	stdout := os.Stdout
	version, suffix := uint(1), ""
	switch fault {
	case "banner":
		fmt.Println("hello")
	case "serves-anyone":
		_ = os.Setenv(cookie, kind)
	case "says-it-served":
		if os.Getenv(cookie) != kind {
			os.Exit(0)
		}
	case "talks":
		if os.Getenv(cookie) != kind {
			fmt.Println("this is a plugin")
			os.Exit(1)
		}
	case "mute":
		if os.Getenv(cookie) != kind {
			os.Exit(1)
		}
	case "version":
		version = 2
	case "not-dispensed":
		suffix = "Other"
	case "bad-record":
		fmt.Fprintln(os.Stderr, `{"@level": "info", "@message": 3, "@timestamp": "2026-01-06T10:00:00.000000Z"}`)
	case "bad-time":
		fmt.Fprintln(os.Stderr, `{"@level": "info", "@message": "m", "@timestamp": "2026-01-06T10:00:00Z"}`)
	case "long-line":
		fmt.Fprintln(os.Stderr, strings.Repeat("x", 70_000))
	case "ignores-term":
		signal.Ignore(syscall.SIGTERM)
	case "dies-of-interrupt":
		go func() {
			for {
				time.Sleep(time.Millisecond)
				signal.Reset(os.Interrupt)
			}
		}()
	case "heavy":
		held = make([]byte, 300<<20)
		for i := range held {
			held[i] = 1
		}
	}
	served := map[string]struct {
		name   string
		plugin goplugin.Plugin
	}{
		"trafficrouter":  {"RpcTrafficRouterPlugin", &routerrpc.RpcTrafficRouterPlugin{Impl: router{}}},
		"metricprovider": {"RpcMetricProviderPlugin", &metricrpc.RpcMetricProviderPlugin{Impl: provider{}}},
		"step":           {"RpcStepPlugin", &steprpc.RpcStepPlugin{Impl: step{}}},
	}
	plugins := map[string]goplugin.Plugin{served[kind].name + suffix: served[kind].plugin}
	if fault == "all-kinds" {
		for _, other := range served {
			plugins[other.name] = other.plugin
		}
	}
	if serveWithFault(fault, kind, served[kind].name, served[kind].plugin) {
		return
	}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: goplugin.HandshakeConfig{ProtocolVersion: version, MagicCookieKey: cookie, MagicCookieValue: kind},
		Plugins:         plugins,
	})
	switch fault {
	case "stays":
		select {}
	case "exit-code":
		os.Exit(3)
	case "stray-output":
		_, _ = stdout.WriteString("stray\n")
	}
}

// answer returns the result of most methods.
func answer() types.RpcError {
	switch fault {
	case "hangs":
		select {}
	case "panics":
		panic("no luck")
	}
	return refusal()
}

const twoLines = "50%\nof it"

// refusal returns the result of InitPlugin and VerifyWeight, so that the faults of answer appear later.
func refusal() types.RpcError {
	if fault == "two-lines" {
		return types.RpcError{ErrorString: twoLines}
	}
	return types.RpcError{}
}

func name() string {
	switch fault {
	case "nameless":
		return ""
	case "fickle":
		return fmt.Sprint("broken", named.Add(1))
	case "exclusive":
		if !busy.TryLock() {
			os.Exit(1)
		}
		defer busy.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	return "broken"
}

// initialize returns the result of InitPlugin.
func initialize() types.RpcError {
	if fault == "slow-init" {
		time.Sleep(1500 * time.Millisecond)
	}
	return refusal()
}

// stall delays pings too, with the fault stalls.
var stall sync.Mutex

// configured does what the configuration says, if a call has one: it writes a text to the file.
func configured(raw []byte, text string) types.RpcError {
	var config struct{ File string }
	if err := json.Unmarshal(raw, &config); err != nil || config.File == "" {
		return types.RpcError{}
	}
	started := config.File + ".started"
	if pid, err := os.ReadFile(started); fault == "forgets" && err == nil && string(pid) != fmt.Sprint(os.Getpid()) {
		return types.RpcError{ErrorString: "another process has started the work"}
	}
	exitOn(os.WriteFile(started, []byte(fmt.Sprint(os.Getpid())), 0o600))
	switch {
	case fault == "refuses-config", fault == "refuses-end" && text == "end":
		return types.RpcError{ErrorString: "not with this configuration"}
	case fault == "dies-of-config":
		panic("no luck with " + config.File)
	case fault == "stalls":
		stall.Lock()
		defer stall.Unlock()
		time.Sleep(1100 * time.Millisecond)
	}
	if fault != "ignores-weight" {
		exitOn(os.WriteFile(config.File, []byte(text), 0o600))
	}
	return types.RpcError{}
}

// ofRollout returns the configuration of a Rollout.
func ofRollout(rollout *v1alpha1.Rollout) []byte {
	if canary := rollout.Spec.Strategy.Canary; canary != nil && canary.TrafficRouting != nil {
		return canary.TrafficRouting.Plugins["broken"]
	}
	return nil
}

type router struct{}

func (router) InitPlugin() types.RpcError { return initialize() }

func (router) Type() string { return name() }

func (router) UpdateHash(*v1alpha1.Rollout, string, string, []v1alpha1.WeightDestination) types.RpcError {
	return answer()
}

func (router) SetWeight(rollout *v1alpha1.Rollout, weight int32, _ []v1alpha1.WeightDestination) types.RpcError {
	if result := configured(ofRollout(rollout), fmt.Sprint(weight)); result.HasError() {
		return result
	}
	return answer()
}

func (router) VerifyWeight(*v1alpha1.Rollout, int32, []v1alpha1.WeightDestination) (types.RpcVerified, types.RpcError) {
	switch fault {
	case "seven":
		return 7, types.RpcError{}
	case "never-verified":
		return types.NotVerified, types.RpcError{}
	}
	return types.Verified, refusal()
}

func (router) SetHeaderRoute(*v1alpha1.Rollout, *v1alpha1.SetHeaderRoute) types.RpcError {
	return answer()
}

func (router) SetMirrorRoute(*v1alpha1.Rollout, *v1alpha1.SetMirrorRoute) types.RpcError {
	return answer()
}

func (router) RemoveManagedRoutes(rollout *v1alpha1.Rollout) types.RpcError {
	if result := configured(ofRollout(rollout), "end"); result.HasError() {
		return result
	}
	return answer()
}

type provider struct{}

func (provider) InitPlugin() types.RpcError { return initialize() }

func (provider) Type() string { return name() }

func (provider) measured() v1alpha1.Measurement {
	if fault == "phase" {
		return v1alpha1.Measurement{Phase: "Done"}
	}
	return v1alpha1.Measurement{Phase: v1alpha1.AnalysisPhaseSuccessful, Message: refusal().ErrorString}
}

func (p provider) Run(_ *v1alpha1.AnalysisRun, metric v1alpha1.Metric) v1alpha1.Measurement {
	if result := configured(metric.Provider.Plugin["broken"], "run"); result.HasError() {
		return v1alpha1.Measurement{Phase: v1alpha1.AnalysisPhaseError, Message: result.Error()}
	}
	return p.measured()
}

func (p provider) Resume(*v1alpha1.AnalysisRun, v1alpha1.Metric, v1alpha1.Measurement) v1alpha1.Measurement {
	return p.measured()
}

func (p provider) Terminate(*v1alpha1.AnalysisRun, v1alpha1.Metric, v1alpha1.Measurement) v1alpha1.Measurement {
	return p.measured()
}

func (provider) GarbageCollect(_ *v1alpha1.AnalysisRun, metric v1alpha1.Metric, _ int) types.RpcError {
	if result := configured(metric.Provider.Plugin["broken"], "end"); result.HasError() {
		return result
	}
	return answer()
}

func (provider) GetMetadata(v1alpha1.Metric) map[string]string {
	return map[string]string{"error": refusal().ErrorString}
}

type step struct{}

func (step) InitPlugin() types.RpcError { return initialize() }

func (step) Type() string { return name() }

func (step) result() types.RpcStepResult {
	switch fault {
	case "phase":
		return types.RpcStepResult{Phase: "Done"}
	case "status":
		return types.RpcStepResult{Phase: types.PhaseSuccessful, Status: []byte("{")}
	}
	return types.RpcStepResult{Phase: types.PhaseSuccessful}
}

func (s step) Run(_ *v1alpha1.Rollout, context *types.RpcStepContext) (types.RpcStepResult, types.RpcError) {
	if result := configured(context.Config, "run"); result.HasError() {
		return types.RpcStepResult{}, result
	}
	return s.result(), answer()
}

func (s step) Terminate(*v1alpha1.Rollout, *types.RpcStepContext) (types.RpcStepResult, types.RpcError) {
	return s.result(), answer()
}

func (s step) Abort(_ *v1alpha1.Rollout, context *types.RpcStepContext) (types.RpcStepResult, types.RpcError) {
	if result := configured(context.Config, "end"); result.HasError() {
		return types.RpcStepResult{}, result
	}
	return s.result(), answer()
}
