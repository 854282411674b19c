package host

import (
	"maps"
	"reflect"
	"testing"

	"sigs.k8s.io/randfill"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
)

func TestEveryMethodAnswers(t *testing.T) {
	t.Parallel()
	rollout := realisticRollout(t)
	before := spec(t, methods, "shop")
	plugin := router(t, methods)

	succeeds(t, "InitPlugin", plugin.InitPlugin())
	if plugin.Type() == "" {
		t.Error("Type: empty")
	}
	for _, step := range []struct {
		desired int32
		want    map[string]int
	}{
		{25, map[string]int{"demo-stable": 75, "demo-canary": 25}},
		{50, map[string]int{"demo-stable": 50, "demo-canary": 50}},
		{100, map[string]int{"demo-canary": 100}},
	} {
		succeeds(t, "RemoveManagedRoutes", plugin.RemoveManagedRoutes(rollout))
		succeeds(t, "UpdateHash", plugin.UpdateHash(rollout, "6d4f8b7c5", "7c9d6b5f4", nil))
		succeeds(t, "SetWeight", plugin.SetWeight(rollout, step.desired, nil))
		verified, err := plugin.VerifyWeight(rollout, step.desired, nil)
		verifies(t, "VerifyWeight", verified, err)
		if got := weights(t, spec(t, methods, "shop")); !maps.Equal(got, step.want) {
			t.Errorf("SetWeight(%d): %v, want %v", step.desired, got, step.want)
		}
	}
	routes := func(spec map[string]any) int { return len(spec["http"].([]any)) }
	current := int32(3)
	rollout.Status.CurrentStepIndex = &current
	succeeds(t, "SetHeaderRoute", plugin.SetHeaderRoute(rollout, rollout.Spec.Strategy.Canary.Steps[3].SetHeaderRoute))
	if after := spec(t, methods, "shop"); routes(after) != routes(before)+1 {
		t.Errorf("SetHeaderRoute: %d routes, the owner wrote %d", routes(after), routes(before))
	}
	succeeds(t, "SetMirrorRoute", plugin.SetMirrorRoute(rollout, rollout.Spec.Strategy.Canary.Steps[4].SetMirrorRoute))
	if after := spec(t, methods, "shop"); routes(after) != routes(before)+2 {
		t.Errorf("SetMirrorRoute: %d routes, the owner wrote %d", routes(after), routes(before))
	}

	succeeds(t, "RemoveManagedRoutes", plugin.RemoveManagedRoutes(rollout))
	succeeds(t, "SetWeight", plugin.SetWeight(rollout, 0, nil))
	if after := spec(t, methods, "shop"); !reflect.DeepEqual(before, after) {
		t.Errorf("SetWeight(0) left %v, the owner wrote %v", after, before)
	}
}

func TestAWeightAboveTheTotalIsClamped(t *testing.T) {
	rollout := realisticRollout(t)
	plugin := router(t, methods)
	succeeds(t, "SetWeight", plugin.SetWeight(rollout, 150, nil))
	if got, want := weights(t, spec(t, methods, "shop")), map[string]int{"demo-canary": 100}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	succeeds(t, "SetWeight", plugin.SetWeight(rollout, 0, nil))
}

func TestAdditionalDestinationsTakeTheirShareFromStable(t *testing.T) {
	rollout := realisticRollout(t)
	plugin := router(t, methods)
	additional := []v1alpha1.WeightDestination{{Weight: 10, ServiceName: "demo-experiment", PodTemplateHash: "5f6c7d8"}}
	succeeds(t, "UpdateHash", plugin.UpdateHash(rollout, "6d4f8b7c5", "7c9d6b5f4", additional))
	succeeds(t, "SetWeight", plugin.SetWeight(rollout, 20, additional))
	want := map[string]int{"demo-stable": 70, "demo-canary": 20, "demo-experiment": 10}
	if got := weights(t, spec(t, methods, "shop")); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	verified, err := plugin.VerifyWeight(rollout, 20, additional)
	verifies(t, "VerifyWeight", verified, err)
	succeeds(t, "SetWeight", plugin.SetWeight(rollout, 0, nil))
}

// Random content in every field of every type of a Rollout.
func TestEveryTypeOfARolloutIsRead(t *testing.T) {
	t.Parallel()
	plugin := router(t, wireTypes)
	essential := realisticRollout(t)
	for seed := range int64(40) {
		var rollout v1alpha1.Rollout
		randfill.NewWithSeed(seed).NilChance(0.1).NumElements(1, 2).Fill(&rollout)
		rollout.Name, rollout.Namespace = essential.Name, essential.Namespace
		if rollout.Spec.Strategy.Canary == nil {
			rollout.Spec.Strategy.Canary = &v1alpha1.CanaryStrategy{}
		}
		canary := rollout.Spec.Strategy.Canary
		canary.StableService, canary.CanaryService, canary.PingPong = "demo-stable", "demo-canary", nil
		canary.TrafficRouting = essential.Spec.Strategy.Canary.TrafficRouting

		succeeds(t, "RemoveManagedRoutes", plugin.RemoveManagedRoutes(&rollout))
		succeeds(t, "UpdateHash", plugin.UpdateHash(&rollout, "a", "b", nil))
		desired := int32(seed % 50)
		succeeds(t, "SetWeight", plugin.SetWeight(&rollout, desired, nil))
		verified, err := plugin.VerifyWeight(&rollout, desired, nil)
		succeeds(t, "VerifyWeight", err)
		if verified == types.NotVerified {
			t.Error("VerifyWeight: not verified")
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
