package host

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/argoproj/argo-cd/v3/applicationset/controllers"
	"github.com/argoproj/argo-cd/v3/applicationset/controllers/template"
	"github.com/argoproj/argo-cd/v3/applicationset/generators"
	"github.com/argoproj/argo-cd/v3/applicationset/metrics"
	"github.com/argoproj/argo-cd/v3/applicationset/utils"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/db"
	"github.com/argoproj/argo-cd/v3/util/settings"
)

const (
	namespace = "argocd"
	configMap = "gloo-appset-generator"
)

// argoCD is the ApplicationSet controller with objects in memory and all released generators.
type argoCD struct {
	client.Client
	reconciler controllers.ApplicationSetReconciler
}

// newArgoCD configures the plugin at a URL, and adds objects.
func newArgoCD(t testing.TB, baseURL string, objects ...client.Object) *argoCD {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	objects = append(objects,
		&v1alpha1.AppProject{ObjectMeta: named("default")},
		&corev1.ConfigMap{ObjectMeta: named(configMap), Data: map[string]string{
			"baseUrl": baseURL, "token": "$" + configMap + ":token",
		}},
		&corev1.Secret{ObjectMeta: named(configMap), Data: map[string][]byte{"token": []byte(token + "\n")}},
	)
	memory := fake.NewClientBuilder().WithScheme(scheme).
		WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ApplicationSet{}).
		WithIndex(&v1alpha1.Application{}, ".metadata.controller", owner).
		Build()
	clientset := kubefake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: named("argocd-cm")},
		&corev1.Secret{ObjectMeta: named("argocd-secret"), Data: map[string][]byte{"admin.password": nil, "server.secretkey": nil}},
	)
	informer, err := settings.NewClusterInformer(clientset, namespace)
	if err != nil {
		t.Fatal(err)
	}
	go informer.Run(t.Context().Done())
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the informer for clusters does not sync")
	}
	scm := generators.NewSCMConfig("", nil, true, false, nil, false)
	return &argoCD{memory, controllers.ApplicationSetReconciler{
		Client:          memory,
		Scheme:          scheme,
		Renderer:        &utils.Render{},
		Recorder:        &record.FakeRecorder{},
		Generators:      generators.GetGenerators(t.Context(), memory, clientset, namespace, apps, nil, scm, informer),
		ArgoDB:          db.NewDB(namespace, settings.NewSettingsManager(t.Context(), clientset, namespace), clientset),
		KubeClientset:   clientset,
		Policy:          v1alpha1.ApplicationsSyncPolicySync,
		ArgoCDNamespace: namespace,
		Metrics:         metrics.NewFakeAppsetMetrics(),
		ClusterInformer: informer,
	}}
}

// owner is the index function of the controller, which does not export it.
func owner(object client.Object) []string {
	owner := metav1.GetControllerOf(object)
	if owner == nil || owner.Kind != "ApplicationSet" {
		return nil
	}
	return []string{owner.Name}
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app.kubernetes.io/part-of": "argocd"}}
}

// cluster returns the Secret of a cluster in Argo CD.
func cluster(name string, labels map[string]string) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: named("cluster-" + name), Data: map[string][]byte{
		"name": []byte(name), "server": []byte("https://" + name + ".example.com"), "config": []byte("{}"),
	}}
	secret.Labels = map[string]string{"argocd.argoproj.io/secret-type": "cluster"}
	for key, value := range labels {
		secret.Labels[key] = value
	}
	return secret
}

// generated returns the Applications of a set, without writing them.
func (a *argoCD) generated(t testing.TB, set *v1alpha1.ApplicationSet) ([]v1alpha1.Application, v1alpha1.ApplicationSetReasonType, error) {
	t.Helper()
	return template.GenerateApplications(logrus.NewEntry(logrus.StandardLogger()), *set, a.reconciler.Generators, a.reconciler.Renderer, a.Client)
}

// renders checks the Applications of a set, each as its name, a colon, and the annotation `shown`.
func (a *argoCD) renders(t testing.TB, set *v1alpha1.ApplicationSet, want ...string) {
	t.Helper()
	applications, _, err := a.generated(t, set)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, application := range applications {
		got = append(got, application.Name+": "+application.Annotations["shown"])
	}
	// A merge does not keep the order.
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("rendered %q, want %q", got, want)
	}
}

// refuses checks that there is an error for the status, and no Application.
func (a *argoCD) refuses(t testing.TB, set *v1alpha1.ApplicationSet, words ...string) {
	t.Helper()
	applications, reason, err := a.generated(t, set)
	refused(t, err, words...)
	if reason != v1alpha1.ApplicationSetReasonApplicationParamsGenerationError {
		t.Errorf("the reason is %q", reason)
	}
	if len(applications) != 0 {
		t.Errorf("generated %v", applications)
	}
}

// asks configures another plugin.
func (a *argoCD) asks(t testing.TB, g *generator) {
	t.Helper()
	settings := &corev1.ConfigMap{ObjectMeta: named(configMap), Data: map[string]string{"baseUrl": g.api, "token": "$" + configMap + ":token"}}
	if err := a.Update(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
}

// reconcile reconciles a set.
func (a *argoCD) reconcile(t testing.TB, set string) ctrl.Result {
	t.Helper()
	result, err := a.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: set}})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// applications returns the Applications in the cluster by name, without those that are being deleted: these wait until Argo
// CD's other controller has deleted their resources.
func (a *argoCD) applications(t testing.TB) map[string]v1alpha1.Application {
	t.Helper()
	var list v1alpha1.ApplicationList
	if err := a.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	found := map[string]v1alpha1.Application{}
	for _, application := range list.Items {
		if application.DeletionTimestamp == nil {
			found[application.Name] = application
		}
	}
	return found
}

// conditions returns the conditions of a set by type.
func (a *argoCD) conditions(t testing.TB, set string) map[v1alpha1.ApplicationSetConditionType]v1alpha1.ApplicationSetCondition {
	t.Helper()
	var found v1alpha1.ApplicationSet
	if err := a.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: set}, &found); err != nil {
		t.Fatal(err)
	}
	conditions := map[v1alpha1.ApplicationSetConditionType]v1alpha1.ApplicationSetCondition{}
	for _, condition := range found.Status.Conditions {
		conditions[condition.Type] = condition
	}
	return conditions
}

// Template settings of a set.
const (
	goTemplate = "goTemplate: true\n  goTemplateOptions: [missingkey=error]"
	// Without the option, a missing value renders as "<no value>".
	lenient      = "goTemplate: true"
	fastTemplate = "goTemplate: false"
)

// applicationSet returns a set with one generator. `name` and `shown` are the templates of its Applications' names and of
// their annotation `shown`.
func applicationSet(t testing.TB, templates, generator, name, shown string) *v1alpha1.ApplicationSet {
	t.Helper()
	return parse(t, fmt.Sprintf(`
apiVersion: argoproj.io/v1alpha1
kind: ApplicationSet
metadata: {name: shop, namespace: argocd}
spec:
  %s
  generators:
  - %s
  template:
    metadata:
      name: %q
      annotations: {shown: %q}
    spec:
      project: default
      source: {repoURL: "https://example.com/shop.git", targetRevision: HEAD, path: chart}
      destination: {server: "https://kubernetes.default.svc", namespace: shop}
`, templates, generator, name, shown))
}

func parse(t testing.TB, text string) *v1alpha1.ApplicationSet {
	t.Helper()
	set := &v1alpha1.ApplicationSet{}
	if err := yaml.UnmarshalStrict([]byte(text), set); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return set
}

// ours returns the plugin generator with parameters. `more` are other members of the generator.
func ours(parameters string, more ...string) string {
	members := append([]string{"configMapRef: {name: " + configMap + "}", "input: {parameters: " + parameters + "}"}, more...)
	return "plugin: {" + strings.Join(members, ", ") + "}"
}

func matrix(first, second string) string {
	return "matrix: {generators: [{" + first + "}, {" + second + "}]}"
}

func merge(key, base, override string) string {
	return "merge: {mergeKeys: [" + key + "], generators: [{" + base + "}, {" + override + "}]}"
}

// pullRequests returns a pull request generator for these branches.
func pullRequests(t testing.TB, branches ...string) string {
	t.Helper()
	return "pullRequest: {github: {api: " + gitHub(t, branches...) + ", owner: myorg, repo: shop, labels: [preview]}}"
}

// gitHub starts a fake GitHub, in which the branches have pull requests in every repository of myorg, and returns its URL.
func gitHub(t testing.TB, branches ...string) string {
	t.Helper()
	var pulls []map[string]any
	for i, branch := range branches {
		pulls = append(pulls, map[string]any{
			"number": 11 + i, "title": "Make " + branch, "user": map[string]any{"login": "someone"},
			"head":   map[string]any{"ref": branch, "sha": strings.Repeat(fmt.Sprint(11+i), 20)},
			"base":   map[string]any{"ref": "main"},
			"labels": []map[string]any{{"name": "preview"}},
		})
	}
	github := serve(t, func(writer http.ResponseWriter, request *http.Request) {
		if matches, _ := filepath.Match("/api/v3/repos/myorg/*/pulls", request.URL.Path); !matches {
			http.NotFound(writer, request)
			return
		}
		fmt.Fprint(writer, jsonOf(t, pulls))
	})
	return github + "/"
}
