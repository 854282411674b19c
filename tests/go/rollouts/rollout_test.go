package host

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"e2e.test/rollouts/fixture"
	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
)

// realisticRollout is the fixture with the size of a Rollout in production, with sidecars and long environments.
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

// After a change of a fixture, record again: `cargo xtask record`.
func TestTheRecordingsAreOfTheseFixtures(t *testing.T) {
	manifest, err := os.ReadFile(filepath.Join(environment.testdata, "../../../../crates/rollouts-rpc/tests/data/MANIFEST"))
	if err != nil {
		t.Fatal(err)
	}
	releases, current := bytes.Count(manifest, []byte("fixtures ")), bytes.Count(manifest, []byte("fixtures "+fixture.Sum()))
	if releases == 0 || current != releases {
		t.Errorf("%d of %d recordings are of these fixtures", current, releases)
	}
}

// configure replaces the plugin block of a Rollout.
func configure(rollout *v1alpha1.Rollout, block string) {
	rollout.Spec.Strategy.Canary.TrafficRouting.Plugins["solo-io/glooplatform"] = []byte(block)
}
