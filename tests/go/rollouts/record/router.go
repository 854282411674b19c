package main

import (
	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"

	"e2e.test/rollouts/fixture"
)

// recordRouter makes every call twice. The first one sends its types; the second one has another Rollout with almost no fields
// set. SetWeight has the whole Rollout both times.
func recordRouter() recording {
	plugin, recorded := record(&rpc.RpcTrafficRouterPlugin{Impl: silentRouter{}})
	router := plugin.(rpc.TrafficRouterPlugin)

	whole, err := fixture.Rollout()
	check(err)
	rollout, err := fixture.Rollout()
	check(err)
	// The string is long, so only one call per round has it.
	delete(rollout.Annotations, "kubectl.kubernetes.io/last-applied-configuration")
	steps := rollout.Spec.Strategy.Canary.Steps
	for _, round := range []struct {
		rollout    *v1alpha1.Rollout
		weight     int32
		additional []v1alpha1.WeightDestination
		header     v1alpha1.SetHeaderRoute
		mirror     v1alpha1.SetMirrorRoute
	}{
		{rollout, 25, nil, *steps[3].SetHeaderRoute, *steps[4].SetMirrorRoute},
		{
			another(), 50, []v1alpha1.WeightDestination{{}, {Weight: 5, ServiceName: "demo-experiment", PodTemplateHash: "5f6c7d8"}},
			v1alpha1.SetHeaderRoute{Name: "header-canary"}, v1alpha1.SetMirrorRoute{Name: "mirror-canary"},
		},
	} {
		recorded.called("InitPlugin", router.InitPlugin())
		router.Type()
		recorded.called("Type", succeeded)
		recorded.called("SetWeight", router.SetWeight(whole, round.weight, round.additional))
		_, result := router.VerifyWeight(round.rollout, round.weight, round.additional)
		recorded.called("VerifyWeight", result)
		recorded.called("UpdateHash", router.UpdateHash(round.rollout, "6d4f8b7c5", "7c9d6b5f4", round.additional))
		recorded.called("SetHeaderRoute", router.SetHeaderRoute(round.rollout, &round.header))
		recorded.called("SetMirrorRoute", router.SetMirrorRoute(round.rollout, &round.mirror))
		recorded.called("RemoveManagedRoutes", router.RemoveManagedRoutes(round.rollout))
	}
	return recorded
}

// another returns a Rollout that is so small that a field of the previous one would be noticed.
func another() *v1alpha1.Rollout {
	rollout := &v1alpha1.Rollout{}
	rollout.Name, rollout.Namespace = "another", "bank"
	rollout.Spec.Strategy.Canary = &v1alpha1.CanaryStrategy{Steps: []v1alpha1.CanaryStep{{SetWeight: new(int32)}}}
	return rollout
}

type silentRouter struct{ silent }

func (silentRouter) UpdateHash(*v1alpha1.Rollout, string, string, []v1alpha1.WeightDestination) types.RpcError {
	return succeeded
}

func (silentRouter) SetWeight(*v1alpha1.Rollout, int32, []v1alpha1.WeightDestination) types.RpcError {
	return succeeded
}

func (silentRouter) SetHeaderRoute(*v1alpha1.Rollout, *v1alpha1.SetHeaderRoute) types.RpcError {
	return succeeded
}

func (silentRouter) SetMirrorRoute(*v1alpha1.Rollout, *v1alpha1.SetMirrorRoute) types.RpcError {
	return succeeded
}

func (silentRouter) VerifyWeight(*v1alpha1.Rollout, int32, []v1alpha1.WeightDestination) (types.RpcVerified, types.RpcError) {
	return types.Verified, succeeded
}

func (silentRouter) RemoveManagedRoutes(*v1alpha1.Rollout) types.RpcError { return succeeded }
