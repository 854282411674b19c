package host

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"e2e.test/rollouts/fixture"
	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
)

// realisticRollout is the fixture grown to the size that sidecars and long environments reach in production.
func realisticRollout(t testing.TB) *v1alpha1.Rollout {
	t.Helper()
	rollout, err := fixture.Rollout()
	if err != nil {
		t.Fatal(err)
	}
	pod := &rollout.Spec.Template.Spec
	for sidecar := range 12 {
		container := pod.Containers[0].DeepCopy()
		container.Name = fmt.Sprintf("sidecar-%d", sidecar)
		for variable := range 60 {
			container.Env = append(container.Env, corev1.EnvVar{
				Name:  fmt.Sprintf("SETTING_%d_%d", sidecar, variable),
				Value: strings.Repeat("value ", 16),
			}, corev1.EnvVar{
				Name: fmt.Sprintf("SECRET_%d_%d", sidecar, variable),
				ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: "demo"}, Key: "token",
				}},
			})
		}
		pod.Containers = append(pod.Containers, *container)
	}
	return rollout
}

// configure replaces our plugin's block in a Rollout.
func configure(rollout *v1alpha1.Rollout, block string) {
	rollout.Spec.Strategy.Canary.TrafficRouting.Plugins["solo-io/glooplatform"] = []byte(block)
}
