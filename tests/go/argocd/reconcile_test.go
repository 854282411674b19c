package host

// Applications (level 3): Argo CD's reconciler with a cluster in memory.

import (
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
)

// passes runs a reconcile, and checks the Applications after it.
func (a *argoCD) passes(t testing.TB, want ...string) time.Duration {
	t.Helper()
	result := a.reconcile(t, "shop")
	if got := slices.Sorted(maps.Keys(a.applications(t))); !slices.Equal(got, want) {
		t.Errorf("the Applications are %q, want %q", got, want)
	}
	return result.RequeueAfter
}

// isHealthy checks that the status shows success.
func (a *argoCD) isHealthy(t testing.TB) {
	t.Helper()
	conditions := a.conditions(t, "shop")
	for kind, status := range map[v1alpha1.ApplicationSetConditionType]v1alpha1.ApplicationSetConditionStatus{
		v1alpha1.ApplicationSetConditionErrorOccurred:       v1alpha1.ApplicationSetConditionStatusFalse,
		v1alpha1.ApplicationSetConditionParametersGenerated: v1alpha1.ApplicationSetConditionStatusTrue,
		v1alpha1.ApplicationSetConditionResourcesUpToDate:   v1alpha1.ApplicationSetConditionStatusTrue,
	} {
		if conditions[kind].Status != status {
			t.Errorf("%s: %+v, want %s", kind, conditions[kind], status)
		}
	}
}

// hasFailed checks that the status shows a failed generator.
func (a *argoCD) hasFailed(t testing.TB, words ...string) {
	t.Helper()
	conditions := a.conditions(t, "shop")
	for _, c := range []struct {
		kind   v1alpha1.ApplicationSetConditionType
		status v1alpha1.ApplicationSetConditionStatus
		reason string
	}{
		{v1alpha1.ApplicationSetConditionErrorOccurred, v1alpha1.ApplicationSetConditionStatusTrue, "ApplicationGenerationFromParamsError"},
		{v1alpha1.ApplicationSetConditionParametersGenerated, v1alpha1.ApplicationSetConditionStatusFalse, "ErrorOccurred"},
		{v1alpha1.ApplicationSetConditionResourcesUpToDate, v1alpha1.ApplicationSetConditionStatusFalse, "ErrorOccurred"},
	} {
		condition := conditions[c.kind]
		if condition.Status != c.status || condition.Reason != c.reason {
			t.Errorf("%s: %+v, want %s, %s", c.kind, condition, c.status, c.reason)
		}
		refused(t, fmt.Errorf("%s", condition.Message), words...)
	}
}

func registryOutage(t *testing.T) {
	r := openRegistry(t)
	for _, tag := range []string{"feature-1", "feature-2"} {
		r.push(t, "myorg/front", tag)
		r.push(t, "myorg/back", tag)
	}
	g := start(t, r.config())
	a := newArgoCD(t, g.api, applicationSet(t, goTemplate, previews(t, "feature-1", "feature-2"), "fb-{{.number}}", ""))
	a.passes(t, "fb-11", "fb-12")
	a.isHealthy(t)
	r.fail("myorg/back", answering(http.StatusServiceUnavailable))
	eventually(t, "cached answers expire", func() bool {
		time.Sleep(time.Second)
		a.passes(t, "fb-11", "fb-12")
		return a.conditions(t, "shop")["ErrorOccurred"].Status == "True"
	})
	if requeue := a.passes(t, "fb-11", "fb-12"); requeue != 3*time.Minute {
		t.Errorf("requeued after %s", requeue)
	}
	a.hasFailed(t, secondChild+"502: ", "myorg/back")
	r.fail("myorg/back", nil)
	// A failure is cached for five seconds.
	time.Sleep(6 * time.Second)
	a.passes(t, "fb-11", "fb-12")
	a.isHealthy(t)
}

// emptied is a configuration whose source has no sets any more.
const emptied = `
static:
  hello: {sets: []}
`

func emptyOnPurpose(t *testing.T) {
	g := start(t, hello)
	a := newArgoCD(t, g.api, applicationSet(t, goTemplate, ours(`{source: hello, onEmpty: allow}`), "{{.key1}}", ""))
	a.passes(t, "val1", "val2")
	g.configure(t, emptied)
	// Plugin generators have this hazard: an empty answer deletes all Applications.
	a.passes(t)
	a.isHealthy(t)
}

func emptyByMistake(t *testing.T) {
	misspeltSelector(t)
	unseenCluster(t)
	for _, set := range []struct{ parameters, word string }{
		{`{source: hello}`, "hello"}, {`{source: hello, onEmpty: error}`, "hello"}, {`{source: hello, minItems: 2}`, "minItems"},
	} {
		g := start(t, hello)
		a := newArgoCD(t, g.api, applicationSet(t, goTemplate, ours(set.parameters), "{{.key1}}", ""))
		a.passes(t, "val1", "val2")
		g.configure(t, emptied)
		a.passes(t, "val1", "val2")
		a.hasFailed(t, "API error with status code 409: ", set.word)
	}
}

func misspeltSelector(t *testing.T) {
	set := applicationSet(t, goTemplate, shopRoutes, "probe-{{.gloo.route.name}}", "")
	a := newArgoCD(t, start(t, glooRoutes, tables(t, atRest)).api, set)
	a.passes(t, "probe-reviews")
	if err := a.Get(t.Context(), client.ObjectKeyFromObject(set), set); err != nil {
		t.Fatal(err)
	}
	set.Spec.Generators[0].Plugin.Input.Parameters["routeTableSelector"] = apiextensionsv1.JSON{Raw: []byte(`{"labels": {"app": "shpo"}}`)}
	if err := a.Update(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	a.passes(t, "probe-reviews")
	a.hasFailed(t, "API error with status code 409: ", "gloo-routes")
}

// After a restart the generator does not know the objects yet, which must not look like an empty cluster.
func unseenCluster(t *testing.T) {
	cluster := newAPIServer(t, table(atRest))
	a := newArgoCD(t, start(t, glooRoutes, tables(t, atRest)).api, applicationSet(t, goTemplate, shopRoutes, "probe-{{.gloo.route.name}}", ""))
	a.passes(t, "probe-reviews")
	g := launch(t, nil, glooRoutes, cluster.kubeconfig)
	a.asks(t, g)
	a.passes(t, "probe-reviews")
	a.hasFailed(t, "API error with status code 503: RouteTables in namespace shop are not known: ")
	cluster.up.Store(true)
	g.becomesReady(t)
	a.passes(t, "probe-reviews")
	a.isHealthy(t)
}

// A canary in progress must not change the Applications of its routes.
func walkingCanary(t *testing.T) {
	walkingRollout(t)
	const headerRoute = `
  - name: canary-by-header
    labels:
      rollouts-plugin-trafficrouter-glooplatform/namespace: shop
      rollouts-plugin-trafficrouter-glooplatform/rollout: reviews
      rollouts-plugin-trafficrouter-glooplatform/managed-route: canary-by-header
    matchers: [{uri: {prefix: /reviews}, headers: [{name: x-canary, value: always}]}]
    forwardTo: {destinations: [{ref: {name: reviews-canary}, port: {number: 8080}}]}
`
	weights := func(stable, canary int) string {
		return fmt.Sprintf(`
  - name: reviews
    matchers: [{uri: {prefix: /reviews}}]
    forwardTo:
      destinations:
      - {ref: {name: reviews-stable}, port: {number: 8080}, weight: %d}
      - {ref: {name: reviews-canary}, port: {number: 8080}, weight: %d}
`, stable, canary)
	}
	set := applicationSet(t, goTemplate, shopRoutes, "probe-{{.gloo.route.name}}", "{{.gloo | toJson}}")
	a := newArgoCD(t, "", set)
	written := ""
	for _, routes := range []string{atRest, weights(90, 10), headerRoute + weights(50, 50), weights(1, 99), atRest} {
		a.asks(t, start(t, glooRoutes, tables(t, routes)))
		a.passes(t, "probe-reviews")
		a.isHealthy(t)
		version := a.applications(t)["probe-reviews"].ResourceVersion
		if written != "" && version != written {
			t.Errorf("these routes change the Application: %s", routes)
		}
		written = version
	}
}

// In every state of a Rollout its Application exists, and it only changes if a value in its template changes.
func walkingRollout(t *testing.T) {
	quiet := applicationSet(t, goTemplate, ours(`{source: rollouts}`), "{{.rollout.name}}", "{{.rollout.stableService}} {{.gloo.hostsCsv}}")
	shows := applicationSet(t, goTemplate, ours(`{source: rollouts}`), "{{.rollout.name}}", "{{.rollout.phase}}")
	a, b := newArgoCD(t, "", quiet), newArgoCD(t, "", shows)
	written := ""
	for _, c := range []struct{ status, phase string }{
		{restsAtA, "Healthy"}, {leavesA, "Progressing"}, {pausesAt10, "Paused"}, {givesUp, "Degraded"}, {restsAtB, "Healthy"}, {"{}", ""},
	} {
		g := start(t, everyObject, objects(t, table(atRest), rollout("reviews", c.status)))
		a.asks(t, g)
		b.asks(t, g)
		a.passes(t, "reviews")
		b.passes(t, "reviews")
		version := a.applications(t)["reviews"].ResourceVersion
		if written != "" && version != written {
			t.Errorf("this status changes the Application: %s", c.status)
		}
		written = version
		if shown := b.applications(t)["reviews"].Annotations["shown"]; shown != c.phase {
			t.Errorf("the Application shows %q, want %q", shown, c.phase)
		}
	}
}

// The example that stops automated sync during a canary.
func frozenCanary(t *testing.T) {
	set := sample(t, schema(t), "freeze.yaml")
	set.Name = "shop"
	a := newArgoCD(t, "", set)
	// The first sync creates the Rollout, and a user deletes it at the end.
	const none = ""
	for _, c := range []struct {
		status    string
		automated bool
	}{
		{none, true}, {restsAtA, true}, {leavesA, false}, {pausesAt10, false}, {givesUp, true}, {pausesAt10, false}, {restsAtB, true}, {none, true},
	} {
		documents := []string{table(atRest)}
		if c.status != none {
			documents = append(documents, rollout("reviews", c.status))
		}
		a.asks(t, start(t, everyObject, objects(t, documents...)))
		a.passes(t, "cart", "details", "reviews")
		a.isHealthy(t)
		application := a.applications(t)["reviews"]
		policy := application.Spec.SyncPolicy
		if automated := policy != nil && policy.Automated != nil; automated != c.automated {
			t.Errorf("automated sync: %v with this status: %s", automated, c.status)
		}
		if shown := application.Annotations["rollouts/in-progress"]; shown != fmt.Sprint(!c.automated) {
			t.Errorf("in progress: %q with this status: %s", shown, c.status)
		}
	}
}

// Argo CD deletes all Applications after these answers, so the generator must never send them.
func emptyAnswers(t *testing.T) {
	for _, body := range []string{
		``, ` `, `null`, `{}`, `{"output":null}`, `{"output":{}}`, `{"output":{"parameters":null}}`, `{"output":{"parameters":[]}}`,
		`{"parameters":[{"key1":"val1"}]}`,
	} {
		answer := `{"output":{"parameters":[{"key1":"val1"}]}}`
		plugin := serve(t, func(writer http.ResponseWriter, _ *http.Request) { fmt.Fprint(writer, answer) })
		a := newArgoCD(t, plugin, applicationSet(t, goTemplate, ours(`{}`), "{{.key1}}", ""))
		a.passes(t, "val1")
		answer = body
		a.passes(t)
		a.isHealthy(t)
	}
}

func duplicateNames(t *testing.T) {
	plugin := serve(t, func(writer http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(writer, `{"output":{"parameters":[{"slug":"one"},{"slug":"two"},{"slug":"two"}]}}`)
	})
	a := newArgoCD(t, plugin, applicationSet(t, goTemplate, ours(`{}`), "{{.slug}}", ""))
	a.passes(t, "one")
	conditions := a.conditions(t, "shop")
	if failed := conditions["ErrorOccurred"]; failed.Reason != "ApplicationValidationError" || !strings.Contains(failed.Message, "contains applications with duplicate name: two") {
		t.Errorf("ErrorOccurred: %+v", failed)
	}
	if generated := conditions["ParametersGenerated"]; generated.Status != "True" {
		t.Errorf("ParametersGenerated: %+v", generated)
	}

	// The generator rejects a configuration with two equal sets.
	g := start(t, hello)
	g.configure(t, "static:\n  hello: {sets: [{key1: a}, {key1: a}]}\n")
	if sets, err := g.list(t, ""); err != nil || !reflect.DeepEqual(sets, helloSets) {
		t.Errorf("listed %v, %v, want the sets of the previous configuration", sets, err)
	}
}

func requeueTimes(t *testing.T) {
	g := start(t, hello)
	for _, c := range []struct {
		member string
		want   time.Duration
	}{
		{"values: {}", 30 * time.Minute}, {"requeueAfterSeconds: 60", time.Minute}, {"requeueAfterSeconds: 0", 0},
	} {
		a := newArgoCD(t, g.api, applicationSet(t, goTemplate, ours(`{source: hello}`, c.member), "{{.key1}}", ""))
		if got := a.passes(t, "val1", "val2"); got != c.want {
			t.Errorf("%s: requeued after %s, want %s", c.member, got, c.want)
		}
	}
}
