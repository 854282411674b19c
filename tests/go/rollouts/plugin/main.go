// Command plugin is a plugin of every kind, served by the real go-plugin server with the controller's own packages. The tests
// of the Rust host call it.
//
// Calls succeed, except for an object named "refused": then the error has the received arguments.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	metricrpc "github.com/argoproj/argo-rollouts/metricproviders/plugin/rpc"
	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	steprpc "github.com/argoproj/argo-rollouts/rollout/steps/plugin/rpc"
	routerrpc "github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
)

const cookie = "ARGO_ROLLOUTS_RPC_PLUGIN"

func main() {
	kind := os.Getenv(cookie)
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: goplugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: cookie, MagicCookieValue: kind},
		Plugins: map[string]map[string]goplugin.Plugin{
			"trafficrouter":  {"RpcTrafficRouterPlugin": &routerrpc.RpcTrafficRouterPlugin{Impl: &router{}}},
			"metricprovider": {"RpcMetricProviderPlugin": &metricrpc.RpcMetricProviderPlugin{Impl: provider{}}},
			"step":           {"RpcStepPlugin": &steprpc.RpcStepPlugin{Impl: step{}}},
		}[kind],
	})
}

// answer returns an error with the arguments of the call for an object named "refused".
func answer(call string, object metav1.Object, arguments ...any) types.RpcError {
	if object.GetName() != "refused" {
		return types.RpcError{}
	}
	text, err := json.Marshal(arguments)
	if err != nil {
		return types.RpcError{ErrorString: err.Error()}
	}
	return types.RpcError{ErrorString: fmt.Sprintf("%s %s/%s %s", call, object.GetNamespace(), object.GetName(), text)}
}

// router stores the last weight, plus one, in memory.
type router struct{ set atomic.Int32 }

func (*router) InitPlugin() types.RpcError { return types.RpcError{} }

func (*router) Type() string { return "go" }

func (*router) UpdateHash(rollout *v1alpha1.Rollout, canary, stable string, additional []v1alpha1.WeightDestination) types.RpcError {
	return answer("UpdateHash", rollout, canary, stable, additional)
}

func (r *router) SetWeight(rollout *v1alpha1.Rollout, desired int32, additional []v1alpha1.WeightDestination) types.RpcError {
	r.set.Store(desired + 1)
	return answer("SetWeight", rollout, desired, additional, rollout.Spec.Strategy.Canary)
}

func (r *router) VerifyWeight(rollout *v1alpha1.Rollout, desired int32, additional []v1alpha1.WeightDestination) (types.RpcVerified, types.RpcError) {
	verified := types.NotVerified
	switch r.set.Load() {
	case 0:
		verified = types.NotImplemented
	case desired + 1:
		verified = types.Verified
	}
	return verified, answer("VerifyWeight", rollout, desired, additional)
}

func (*router) SetHeaderRoute(rollout *v1alpha1.Rollout, route *v1alpha1.SetHeaderRoute) types.RpcError {
	return answer("SetHeaderRoute", rollout, route)
}

func (*router) SetMirrorRoute(rollout *v1alpha1.Rollout, route *v1alpha1.SetMirrorRoute) types.RpcError {
	return answer("SetMirrorRoute", rollout, route)
}

func (*router) RemoveManagedRoutes(rollout *v1alpha1.Rollout) types.RpcError {
	return answer("RemoveManagedRoutes", rollout, rollout.Status.CurrentPodHash)
}

// provider returns the value in a metric's configuration as its measurement.
type provider struct{}

func (provider) InitPlugin() types.RpcError { return types.RpcError{} }

func (provider) Type() string { return "go" }

func (provider) Run(run *v1alpha1.AnalysisRun, metric v1alpha1.Metric) v1alpha1.Measurement {
	now := metav1.NewTime(time.Unix(1700000000, 0))
	return v1alpha1.Measurement{
		Phase: v1alpha1.AnalysisPhaseRunning, Value: string(metric.Provider.Plugin["e2e/go"]), StartedAt: &now,
		Metadata: map[string]string{"run": run.Namespace + "/" + run.Name},
	}
}

func (provider) Resume(_ *v1alpha1.AnalysisRun, _ v1alpha1.Metric, measurement v1alpha1.Measurement) v1alpha1.Measurement {
	measurement.Phase = v1alpha1.AnalysisPhaseSuccessful
	return measurement
}

func (provider) Terminate(_ *v1alpha1.AnalysisRun, _ v1alpha1.Metric, measurement v1alpha1.Measurement) v1alpha1.Measurement {
	measurement.Phase = v1alpha1.AnalysisPhaseFailed
	return measurement
}

func (provider) GarbageCollect(run *v1alpha1.AnalysisRun, metric v1alpha1.Metric, limit int) types.RpcError {
	return answer("GarbageCollect", run, metric.Name, limit)
}

func (provider) GetMetadata(metric v1alpha1.Metric) map[string]string {
	return map[string]string{"metric": metric.Name}
}

// step stores its configuration as its status.
type step struct{}

func (step) InitPlugin() types.RpcError { return types.RpcError{} }

func (step) Type() string { return "go" }

func (step) Run(rollout *v1alpha1.Rollout, context *types.RpcStepContext) (types.RpcStepResult, types.RpcError) {
	result := types.RpcStepResult{
		Phase: types.PhaseRunning, Message: context.PluginName, RequeueAfter: 15 * time.Second, Status: context.Config,
	}
	return result, answer("Run", rollout, context)
}

func (step) Terminate(rollout *v1alpha1.Rollout, context *types.RpcStepContext) (types.RpcStepResult, types.RpcError) {
	return types.RpcStepResult{Phase: types.PhaseFailed, Message: string(context.Status)}, answer("Terminate", rollout)
}

func (step) Abort(rollout *v1alpha1.Rollout, context *types.RpcStepContext) (types.RpcStepResult, types.RpcError) {
	return types.RpcStepResult{Phase: types.PhaseSuccessful, Message: string(context.Status)}, answer("Abort", rollout)
}
