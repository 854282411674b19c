package host

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	openapi "k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"

	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
)

const samples = "../../../examples/appset"

// sampleTable has the label that the examples select.
const sampleTable = `
apiVersion: networking.gloo.solo.io/v2
kind: RouteTable
metadata: {name: web, namespace: shop, labels: {app: shop, probe: "true"}}
spec:
  hosts: [shop.example.com]
  http:
  - name: reviews
    matchers: [{uri: {prefix: /reviews}}]
    forwardTo: {destinations: [{ref: {name: reviews-stable}, port: {number: 8080}}]}
  - name: details
    matchers: [{uri: {prefix: /details}}]
    forwardTo: {destinations: [{ref: {name: details-stable}, port: {number: 8080}}]}
`

// TestSamples applies each ApplicationSet of the examples unchanged, with the configuration of the examples. Argo CD's other
// generators use test doubles, and the registry is behind a proxy.
func TestSamples(t *testing.T) {
	r := openRegistry(t)
	frontMain, backMain := r.push(t, "myorg/front", "main"), r.push(t, "myorg/back", "main")
	// The images of pull request 11. Those of 12 are not built yet.
	front, back := r.push(t, "myorg/front", "1111111"), r.push(t, "myorg/back", "1111111")
	config, err := os.ReadFile(filepath.Join(samples, "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	g := startIn(t, r.asHost(t, "ghcr.io"), string(config), objects(t, sampleTable, rollout("reviews", pausesAt10), rollout("details", restsAtA), workspaces))

	source := func(a v1alpha1.Application) *v1alpha1.ApplicationSource { return a.Spec.Source }
	path := func(a v1alpha1.Application) string { return source(a).Path }
	images := func(a v1alpha1.Application) string {
		if source(a).Kustomize == nil {
			return path(a)
		}
		return fmt.Sprint(path(a), " ", source(a).Kustomize.Images)
	}
	automated := func(a v1alpha1.Application) string {
		return fmt.Sprint(path(a), " ", a.Annotations, " ", a.Spec.SyncPolicy != nil && a.Spec.SyncPolicy.Automated != nil)
	}
	values := func(a v1alpha1.Application) string { return strings.TrimSpace(source(a).Helm.ValuesString()) }
	cases := map[string]struct {
		shown func(v1alpha1.Application) string
		want  []string
	}{
		"hello.yaml": {path, []string{
			"shop-val1 in in-cluster/shop: val2",
			"shop-val3 in in-cluster/shop: val4",
		}},
		"previews.yaml": {images, []string{
			"shop-11 in in-cluster/shop-11: deploy [front=ghcr.io/myorg/front@" + front + " back=ghcr.io/myorg/back@" + back + "]",
		}},
		"images.yaml": {images, []string{
			"back in in-cluster/back: back [back=ghcr.io/myorg/back@" + backMain + "]",
			"docs in in-cluster/docs: docs",
			"front in in-cluster/front: front [front=ghcr.io/myorg/front@" + frontMain + "]",
		}},
		"freeze.yaml": {automated, []string{
			"cart in in-cluster/shop: shop/cart map[rollouts/in-progress:false] true",
			"details in in-cluster/shop: shop/details map[rollouts/in-progress:false] true",
			"reviews in in-cluster/shop: shop/reviews map[rollouts/in-progress:true] false",
		}},
		"workspaces.yaml": {values, []string{
			"ops-c1 in c1/platform: namespaces: ops\nworkspace: ops",
			"ops-c2 in c2/platform: namespaces: ops\nworkspace: ops",
			"web-c1 in c1/platform: namespaces: shop,team-*\nworkspace: web",
		}},
		"clusters.yaml": {values, []string{
			"agent-c1 in c1/platform: namespaces: shop,team-*",
			`agent-c2 in c2/platform: namespaces: ""`,
			`agent-in-cluster in in-cluster/platform: namespaces: ""`,
		}},
		"probes.yaml": {values, []string{
			"probe-in-cluster-shop-web-det-9bd43c3a19ca3c6a in in-cluster/probes: url: https://shop.example.com/details",
			"probe-in-cluster-shop-web-rev-5e08ce43bbdd4ab9 in in-cluster/probes: url: https://shop.example.com/reviews",
		}},
	}
	files, err := filepath.Glob(samples + "/*.yaml")
	// The other four are config.yaml and the three files of Argo CD's page, which a scenario applies.
	if err != nil || len(files) != len(cases)+4 {
		t.Errorf("the examples are %q, %v, want those tested here and the other four", files, err)
	}
	validator := schema(t)
	for file, c := range cases {
		t.Run(file, func(t *testing.T) {
			set := sample(t, validator, file, "feature-1", "feature-2")
			a := newArgoCD(t, g.api, cluster("c1", nil), cluster("c2", nil))
			applications, _, err := a.generated(t, set)
			if err != nil {
				t.Fatal(err)
			}
			got := []string{}
			for _, application := range applications {
				destination := application.Spec.Destination
				got = append(got, fmt.Sprintf("%s in %s/%s: %s", application.Name, destination.Name, destination.Namespace, c.shown(application)))
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("generated %q, want %q", got, c.want)
			}
		})
	}
}

// sample reads an ApplicationSet, validates it with the CRD, and replaces GitHub by a test double in which the branches have
// pull requests.
func sample(t *testing.T, validator *validate.SchemaValidator, file string, branches ...string) *v1alpha1.ApplicationSet {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(samples, file))
	if err != nil {
		t.Fatal(err)
	}
	var object any
	if err := yaml.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	if err := validator.Validate(object).AsError(); err != nil {
		t.Error(err)
	}
	set := parse(t, string(text))
	for _, generator := range set.Spec.Generators {
		if generator.Matrix != nil && generator.Matrix.Generators[0].PullRequest != nil {
			generator.Matrix.Generators[0].PullRequest.Github.API = gitHub(t, branches...)
		}
	}
	return set
}

// schema returns a validator with the schema of the released CRD.
func schema(t *testing.T) *validate.SchemaValidator {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(argoCDModule(t), "manifests/crds/applicationset-crd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var definition struct {
		Spec struct {
			Versions []struct {
				Schema struct{ OpenAPIV3Schema *openapi.Schema }
			}
		}
	}
	if err := yaml.Unmarshal(text, &definition); err != nil {
		t.Fatal(err)
	}
	return validate.NewSchemaValidator(definition.Spec.Versions[0].Schema.OpenAPIV3Schema, nil, "", strfmt.Default)
}

// argoCDModule returns the directory of Argo CD's module.
func argoCDModule(t *testing.T) string {
	t.Helper()
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/argoproj/argo-cd/v3").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(module))
}

// asHost serves the registry under a host name, over HTTPS and behind a proxy. It returns the environment variables that a
// process needs to reach it.
func (r *registry) asHost(t testing.TB, name string) []string {
	t.Helper()
	file, key := certificate(t, name)
	pair, err := tls.LoadX509KeyPair(file, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, listener, r)
	proxy := serve(t, func(writer http.ResponseWriter, request *http.Request) {
		if request.Method != http.MethodConnect || request.Host != name+":443" {
			http.Error(writer, "no way to "+request.Host, http.StatusForbidden)
			return
		}
		tunnel(t.Context(), writer, listener.Addr().String())
	})
	return []string{"HTTPS_PROXY=" + proxy, "SSL_CERT_FILE=" + file}
}

// tunnel connects a client of a proxy to an address.
func tunnel(ctx context.Context, writer http.ResponseWriter, address string) {
	far, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		http.Error(writer, err.Error(), http.StatusBadGateway)
		return
	}
	near, buffered, err := http.NewResponseController(writer).Hijack()
	if err != nil {
		_ = far.Close()
		return
	}
	_, _ = io.WriteString(near, "HTTP/1.1 200 Connected\r\n\r\n")
	go func() {
		defer far.Close()
		_, _ = io.Copy(far, buffered)
	}()
	go func() {
		defer near.Close()
		_, _ = io.Copy(near, far)
	}()
}

// git is a fake repo server, in which every repository has these files.
type git map[string]string

var apps = git{
	"front/app.yaml": "app: front", "back/app.yaml": "app: back", "docs/app.yaml": "app: docs",
	"shop/cart/app.yaml": "app: cart", "shop/details/app.yaml": "app: details", "shop/reviews/app.yaml": "app: reviews",
}

func (g git) GetFiles(_ context.Context, _, _, _, pattern string, _ bool, _ *v1alpha1.SourceIntegrity) (map[string][]byte, error) {
	files := map[string][]byte{}
	for path, text := range g {
		if matches, err := filepath.Match(pattern, path); err != nil {
			return nil, err
		} else if matches {
			files[path] = []byte(text)
		}
	}
	return files, nil
}

func (git) GetDirectories(context.Context, string, string, string, bool, *v1alpha1.SourceIntegrity) ([]string, error) {
	return nil, nil
}

func (git) GetOciFiles(context.Context, string, string, string, string, bool) (map[string][]byte, error) {
	return nil, nil
}

func (git) GetOciDirectories(context.Context, string, string, string, bool) ([]string, error) {
	return nil, nil
}
