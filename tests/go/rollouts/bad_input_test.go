package host

import (
	"maps"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
)

// SetWeight returns an error and changes no file.
func TestBadInputIsRefusedAndChangesNothing(t *testing.T) {
	t.Parallel()
	plugin := router(t, badInput)
	for name, bad := range map[string]struct {
		edit    func(*v1alpha1.Rollout)
		desired int32
		words   []string
	}{
		"no block of ours": {
			edit: func(r *v1alpha1.Rollout) {
				delete(r.Spec.Strategy.Canary.TrafficRouting.Plugins, "solo-io/glooplatform")
			},
			words: []string{"shop/demo", "example.com/other", "argoproj-labs/gatewayAPI"},
		},
		"block is not JSON":    {edit: block(`{`), words: []string{"shop/demo"}},
		"block is a list":      {edit: block(`[]`), words: []string{"shop/demo"}},
		"unknown key":          {edit: block(`{"routeTableSelectr": {"name": "shop"}}`), words: []string{"routeTableSelectr", "routeTableSelector"}},
		"wrong type":           {edit: block(`{"routeTableSelector": "shop"}`), words: []string{"routeTableSelector"}},
		"wrong type in a list": {edit: block(`{"routeTableSelector": {"names": [7]}}`), words: []string{"names"}},
		"no selector":          {edit: block(`{}`), words: []string{"routeTableSelector"}},
		"empty selector":       {edit: block(`{"routeTableSelector": {}}`), words: []string{"routeTableSelector"}},
		"foreign destination":  {edit: block(`{"routeTableSelector": {"name": "shop"}, "destinationNamespace": "other"}`), words: []string{"destinationNamespace", "allow destinations in other"}},
		"absent table":         {edit: block(`{"routeTableSelector": {"name": "absent"}}`), words: []string{"shop/absent"}},
		"absent route":         {edit: block(`{"routeTableSelector": {"name": "shop"}, "routeSelector": {"name": "absent"}}`), words: []string{"shop/shop", "routeSelector", "reviews"}},
		"no route to stable": {
			edit:  func(r *v1alpha1.Rollout) { r.Spec.Strategy.Canary.StableService = "nobody" },
			words: []string{"shop/shop", "nobody", "demo-stable"},
		},
		"no stable service": {
			edit:  func(r *v1alpha1.Rollout) { r.Spec.Strategy.Canary.StableService = "" },
			words: []string{"stableService"},
		},
		"destination of another kind":      {edit: block(`{"routeTableSelector": {"name": "other-kind"}}`), words: []string{"shop/other-kind", "VirtualDestination"}},
		"destination in another namespace": {edit: block(`{"routeTableSelector": {"name": "other-namespace"}}`), words: []string{"shop/other-namespace", "bank"}},
		"no share left":                    {edit: block(`{"routeTableSelector": {"name": "no-share"}}`), words: []string{"shop/no-share", "100"}},
		"negative weight":                  {edit: func(*v1alpha1.Rollout) {}, desired: -1, words: []string{"-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := files(t, badInput)
			rollout := realisticRollout(t)
			bad.edit(rollout)
			desired := bad.desired
			if desired == 0 {
				desired = 25
			}
			refuses(t, "SetWeight", plugin.SetWeight(rollout, desired, nil), bad.words...)
			if after := files(t, badInput); !maps.Equal(before, after) {
				t.Errorf("the files changed from %v to %v", before, after)
			}
		})
	}
}

// The controller passes the text of an error to a formatting function, so it must not contain a verb.
func TestAPercentSignDoesNotReachTheController(t *testing.T) {
	t.Parallel()
	rollout := realisticRollout(t)
	configure(rollout, `{"routeTableSelector": {"name": "shop"}, "weight%d%s%!": 1}`)
	refuses(t, "SetWeight", router(t, badInput).SetWeight(rollout, 25, nil), "weight")
}

// After an error of VerifyWeight the controller promotes without verification.
func TestAnUnreachableAPIServerIsAnErrorAndNeverVerified(t *testing.T) {
	t.Parallel()
	plugin := router(t, unreachable)
	rollout := realisticRollout(t)
	refuses(t, "SetWeight", plugin.SetWeight(rollout, 25, nil), "shop/shop")
	verified, err := plugin.VerifyWeight(rollout, 25, nil)
	succeeds(t, "VerifyWeight", err)
	if verified != types.NotVerified {
		t.Errorf("VerifyWeight: answered %d, want not verified", verified)
	}
}

func block(text string) func(*v1alpha1.Rollout) {
	return func(rollout *v1alpha1.Rollout) { configure(rollout, text) }
}
