package host

// Requests of Argo CD's server, which serves `argocd appset generate`, and the NetworkPolicy of the generator.

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/argoproj/pkg/v2/sync"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	api "github.com/argoproj/argo-cd/v3/pkg/apiclient/applicationset"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/pkg/client/clientset/versioned/fake"
	"github.com/argoproj/argo-cd/v3/server/applicationset"
	"github.com/argoproj/argo-cd/v3/util/rbac"
)

const manifests = "../../../deploy/appset-generator/kustomize"

// The ConfigMap and the NetworkPolicy come from the manifests. The policy is only evaluated, not enforced.
func askedByTheServer(t *testing.T) {
	g := start(t, hello)
	a := newArgoCD(t, "")
	settings := corev1.ConfigMap{}
	read(t, manifests+"/argo-cd.yaml", &settings)
	settings.Namespace = namespace
	if err := a.Update(t.Context(), &settings); err != nil {
		t.Fatal(err)
	}
	resolver.Store(strings.TrimPrefix(settings.Data["baseUrl"], "http://"), strings.TrimPrefix(g.api, "http://"))
	r := &a.reconciler
	everyone := rbac.NewEnforcer(r.KubeClientset, namespace, "argocd-rbac-cm", nil)
	everyone.EnableEnforce(false)
	server := applicationset.NewServer(
		r.ArgoDB, r.KubeClientset, nil, a.Client, everyone, nil,
		fake.NewSimpleClientset(&v1alpha1.AppProject{ObjectMeta: named("default")}),
		cache.NewSharedIndexInformer(nil, &v1alpha1.ApplicationSet{}, 0, nil), nil, nil,
		namespace, sync.NewKeyLock(), nil, false, false, "", nil, true, false, nil, r.ClusterInformer,
	)
	generate := func(parameters string) ([]string, error) {
		set := applicationSet(t, goTemplate, ours(parameters), "{{.key1}}", "")
		response, err := server.Generate(t.Context(), &api.ApplicationSetGenerateRequest{ApplicationSet: set})
		if err != nil {
			return nil, err
		}
		var names []string
		for _, application := range response.Applications {
			names = append(names, application.Name)
		}
		return names, nil
	}
	if names, err := generate(`{source: hello}`); err != nil || len(names) != 2 || names[0] != "val1" || names[1] != "val2" {
		t.Errorf("generated %q, %v", names, err)
	}
	_, err := generate(`{source: helo}`)
	refused(t, err, "API error with status code 400: ", "helo", "hello")

	policy := networkingv1.NetworkPolicy{}
	read(t, manifests+"/network-policy.yaml", &policy)
	for deployment, asks := range map[string]bool{
		"server/argocd-server-deployment.yaml":                                       true,
		"applicationset-controller/argocd-applicationset-controller-deployment.yaml": true,
		"repo-server/argocd-repo-server-deployment.yaml":                             false,
		"dex/argocd-dex-server-deployment.yaml":                                      false,
	} {
		var pods appsv1.Deployment
		read(t, filepath.Join(argoCDModule(t), "manifests/base", deployment), &pods)
		if letsIn(t, policy, pods.Spec.Template.Labels, "api") != asks {
			t.Errorf("%s: is admitted: %v", deployment, !asks)
		}
	}
}

// letsIn returns whether a policy admits a pod of the same namespace to a port.
func letsIn(t *testing.T, policy networkingv1.NetworkPolicy, pod labels.Set, port string) bool {
	t.Helper()
	for _, rule := range policy.Spec.Ingress {
		if len(rule.Ports) != 1 || rule.Ports[0].Port.StrVal != port {
			continue
		}
		for _, peer := range rule.From {
			selector, err := metav1.LabelSelectorAsSelector(peer.PodSelector)
			if err != nil {
				t.Fatal(err)
			}
			if selector.Matches(pod) {
				return true
			}
		}
	}
	return false
}

func read(t *testing.T, file string, object any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.UnmarshalStrict(text, object)
	}
	if err != nil {
		t.Fatal(err)
	}
}
