package host

import (
	"fmt"
	"os"
	"reflect"
	"testing"

	jsonpatch "github.com/evanphx/json-patch"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/argo/diff"
	"github.com/argoproj/argo-cd/v3/util/argo/normalizers"
)

const routeTable = `
apiVersion: networking.gloo.solo.io/v2
kind: RouteTable
metadata:
  name: shop
  namespace: shop
  managedFields:
  - {manager: %s, operation: Update, apiVersion: networking.gloo.solo.io/v2, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:http": {}}}}
spec:
  hosts: [%s]
  http:
  - name: reviews
    matchers: [{uri: {prefix: %s}}]
    forwardTo: {destinations: [%s]}
`

const (
	canaryManager = "rollouts-plugin-trafficrouter-glooplatform"
	restManager   = canaryManager + "-at-rest"
	resting       = "{ref: {name: reviews}}"
	split         = "{ref: {name: reviews}, weight: 75}, {ref: {name: reviews-canary}, weight: 25}"
)

// TestIgnoreDifferences compares and syncs a RouteTable like Argo CD, with the settings of the recommended Application.
func TestIgnoreDifferences(t *testing.T) {
	for _, c := range []struct {
		name, manager, destinations, hosts, prefix string
		outOfSync, keepsRoutes                     bool
	}{
		{"weights of a canary are not a difference and survive a sync", canaryManager, split, "a", "/", false, true},
		{"an edit of the routes in Git waits for the end of the update", canaryManager, split, "a", "/v2", false, true},
		{"an edit of other fields is applied during an update", canaryManager, split, "b", "/", true, true},
		{"at rest nothing differs", restManager, resting, "a", "/", false, false},
		{"at rest an edit of the routes in Git is applied", restManager, resting, "a", "/v2", true, false},
		{"at rest drift in the cluster is reverted", restManager, split, "a", "/", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			live := document(t, c.manager, "a", "/", c.destinations)
			git := document(t, "", c.hosts, c.prefix, resting)
			unstructured.RemoveNestedField(git.Object, "metadata", "managedFields")
			modified, synced := compare(t, recipe(t).Spec.IgnoreDifferences, live, git)
			if modified != c.outOfSync {
				t.Errorf("out of sync: %v", modified)
			}
			routes := git
			if c.keepsRoutes {
				routes = live
			}
			for field, source := range map[string]*unstructured.Unstructured{"http": routes, "hosts": git} {
				actual, expected := spec(synced)[field], spec(source)[field]
				if !reflect.DeepEqual(actual, expected) {
					t.Errorf("%s: a sync applies %v, not %v", field, actual, expected)
				}
			}
		})
	}
}

// compare returns whether Argo CD calls an Application out of sync, and the object that a sync applies.
func compare(t *testing.T, ignored []v1alpha1.ResourceIgnoreDifferences, live, git *unstructured.Unstructured) (bool, *unstructured.Unstructured) {
	config, err := diff.NewDiffConfigBuilder().
		WithDiffSettings(ignored, nil, false, normalizers.IgnoreNormalizerOpts{}).
		WithTracking("", string(v1alpha1.TrackingMethodAnnotation)).WithNoCache().Build()
	if err != nil {
		t.Fatal(err)
	}
	compared, err := diff.StateDiff(t.Context(), live, git, config)
	if err != nil {
		t.Fatal(err)
	}
	return compared.Modified, respecting(t, live, git, config)
}

// TestIgnoredPath shows why the documentation advises against paths: at rest an edit of the routes in Git does not arrive either.
func TestIgnoredPath(t *testing.T) {
	live := document(t, restManager, "a", "/", resting)
	git := document(t, "", "a", "/v2", resting)
	unstructured.RemoveNestedField(git.Object, "metadata", "managedFields")
	for _, ignored := range []v1alpha1.ResourceIgnoreDifferences{
		{JSONPointers: []string{"/spec/http"}},
		{JSONPointers: []string{"/spec"}},
		{JQPathExpressions: []string{".spec.http"}},
		{JQPathExpressions: []string{".spec.http[]"}},
	} {
		// Both may be patterns.
		ignored.Group, ignored.Kind = "*.solo.io", "Route*"
		modified, synced := compare(t, []v1alpha1.ResourceIgnoreDifferences{ignored}, live, git)
		if modified {
			t.Errorf("%v: the edit is a difference", ignored)
		}
		if !reflect.DeepEqual(spec(synced)["http"], spec(live)["http"]) {
			t.Errorf("%v: a sync applies the edit", ignored)
		}
	}
}

// recipe reads the recommended Application from the manifests.
func recipe(t *testing.T) (application v1alpha1.Application) {
	text, err := os.ReadFile("../../../deploy/argo-cd/application.yaml")
	if err == nil {
		err = yaml.UnmarshalStrict(text, &application)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !application.Spec.SyncPolicy.SyncOptions.HasOption("RespectIgnoreDifferences=true") {
		t.Fatal("the Application lacks RespectIgnoreDifferences=true")
	}
	return application
}

// respecting returns the object that a sync with RespectIgnoreDifferences applies: ignored fields keep their values in the
// cluster (controller/sync.go, normalizeTargetResources, which is not exported).
func respecting(t *testing.T, live, git *unstructured.Unstructured, config diff.DiffConfig) *unstructured.Unstructured {
	t.Helper()
	normalized, err := diff.Normalize([]*unstructured.Unstructured{live}, []*unstructured.Unstructured{git}, config)
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := jsonpatch.CreateMergePatch(encoded(t, normalized.Lives[0]), encoded(t, live))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := jsonpatch.MergePatch(encoded(t, normalized.Targets[0]), ignored)
	if err != nil {
		t.Fatal(err)
	}
	synced := &unstructured.Unstructured{}
	if err := synced.UnmarshalJSON(merged); err != nil {
		t.Fatal(err)
	}
	return synced
}

func document(t *testing.T, manager, hosts, prefix, destinations string) *unstructured.Unstructured {
	t.Helper()
	json, err := yaml.YAMLToJSON(fmt.Appendf(nil, routeTable, manager, hosts, prefix, destinations))
	if err != nil {
		t.Fatal(err)
	}
	document := &unstructured.Unstructured{}
	if err := document.UnmarshalJSON(json); err != nil {
		t.Fatal(err)
	}
	return document
}

func encoded(t *testing.T, object *unstructured.Unstructured) []byte {
	t.Helper()
	json, err := object.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return json
}

func spec(object *unstructured.Unstructured) map[string]any {
	spec, _, _ := unstructured.NestedMap(object.Object, "spec")
	return spec
}
