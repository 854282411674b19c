//go:build !before_1_8

package main

import (
	"encoding/json"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/rollout/steps/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"

	"e2e.test/rollouts/fixture"
)

func init() { recordings["step"] = recordStep }

// recordStep makes every call twice, the second time with another Rollout and without a configuration.
func recordStep() recording {
	plugin, recorded := record(&rpc.RpcStepPlugin{Impl: silentStep{}})
	step := plugin.(rpc.StepPlugin)

	rollout, err := fixture.Rollout()
	check(err)
	delete(rollout.Annotations, "kubectl.kubernetes.io/last-applied-configuration")
	for _, round := range []struct {
		rollout *v1alpha1.Rollout
		context types.RpcStepContext
	}{
		{rollout, types.RpcStepContext{PluginName: "example.com/step", Config: json.RawMessage(`{"retries":3}`), Status: json.RawMessage(`{"looks":2}`)}},
		{another(), types.RpcStepContext{PluginName: "example.com/step"}},
	} {
		recorded.called("InitPlugin", step.InitPlugin())
		step.Type()
		recorded.called("Type", succeeded)
		_, result := step.Run(round.rollout, &round.context)
		recorded.called("Run", result)
		_, result = step.Terminate(round.rollout, &round.context)
		recorded.called("Terminate", result)
		_, result = step.Abort(round.rollout, &round.context)
		recorded.called("Abort", result)
	}
	return recorded
}

type silentStep struct{ silent }

func (silentStep) Run(*v1alpha1.Rollout, *types.RpcStepContext) (none types.RpcStepResult, _ types.RpcError) {
	return
}

func (silentStep) Terminate(*v1alpha1.Rollout, *types.RpcStepContext) (none types.RpcStepResult, _ types.RpcError) {
	return
}

func (silentStep) Abort(*v1alpha1.Rollout, *types.RpcStepContext) (none types.RpcStepResult, _ types.RpcError) {
	return
}
