package host

// Generated Applications (level 2): Argo CD's generators and templates, without a cluster.

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
)

// Every error of the set-up is in the status, and no Application is deleted.
func setUpErrors(t *testing.T) {
	const nowhere = "http://127.0.0.1:1"
	configMapIs := func(data map[string]string) func(*argoCD) error {
		return func(a *argoCD) error {
			return a.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: named(configMap), Data: data})
		}
	}
	const secretKey = "$" + configMap + ":token"
	for _, c := range []struct {
		damage  func(*argoCD) error
		message string
	}{
		{
			func(a *argoCD) error { return a.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: named(configMap)}) },
			`error getting plugin from generator: error fetching ConfigMap: configmaps "gloo-appset-generator" not found`,
		},
		{
			configMapIs(map[string]string{"token": secretKey}),
			"error getting plugin from generator: error fetching ConfigMap: baseUrl not found in ConfigMap",
		},
		{
			configMapIs(map[string]string{"baseUrl": nowhere}),
			"error getting plugin from generator: error fetching ConfigMap: token not found in ConfigMap",
		},
		{
			configMapIs(map[string]string{"baseUrl": nowhere, "token": "plain-text"}),
			"error getting plugin from generator: error fetching Secret token: " +
				"token is empty, or does not reference a secret key starting with '$': plain-text",
		},
		{
			func(a *argoCD) error { return a.Delete(t.Context(), &corev1.Secret{ObjectMeta: named(configMap)}) },
			`error getting plugin from generator: error fetching Secret token: ` +
				`error fetching secret argocd/gloo-appset-generator: secrets "gloo-appset-generator" not found`,
		},
		{
			configMapIs(map[string]string{"baseUrl": nowhere, "token": secretKey, "requestTimeout": "30s"}),
			`error getting plugin from generator: error set requestTimeout : strconv.Atoi: parsing "30s": invalid syntax`,
		},
		{
			configMapIs(map[string]string{"baseUrl": "gloo-appset-generator.argocd.svc", "token": secretKey}),
			`error listing params: error get api 'shop': ` +
				`Post "gloo-appset-generator.argocd.svc/api/v1/getparams.execute": unsupported protocol scheme ""`,
		},
		{
			configMapIs(map[string]string{"baseUrl": nowhere + "\n", "token": secretKey}),
			`error listing params: NewRequest returned unexpected error: ` +
				`parse "http://127.0.0.1:1\n/api/v1/getparams.execute": net/url: invalid control character in URL`,
		},
		{
			func(*argoCD) error { return nil },
			`error listing params: error get api 'shop': ` +
				`Post "http://127.0.0.1:1/api/v1/getparams.execute": dial tcp 127.0.0.1:1: connect: connection refused`,
		},
	} {
		a := newArgoCD(t, nowhere)
		if err := c.damage(a); err != nil {
			t.Fatal(err)
		}
		set := applicationSet(t, goTemplate, ours(`{source: hello}`), "{{.key1}}", "")
		a.refuses(t, set)
		if _, _, err := a.generated(t, set); err == nil || err.Error() != c.message {
			t.Errorf("the error is %q, want %q", err, c.message)
		}
	}
}

// If the Secret lacks the key, Argo CD sends the reference as the token.
func missingSecretKey(t *testing.T) {
	g := start(t, hello)
	a := newArgoCD(t, g.api)
	if err := a.Update(t.Context(), &corev1.Secret{ObjectMeta: named(configMap)}); err != nil {
		t.Fatal(err)
	}
	set := applicationSet(t, goTemplate, ours(`{source: hello}`), "{{.key1}}", "")
	a.refuses(t, set, "error listing params: error get api 'shop': API error with status code 403: ")

	// An empty token must not match: a Secret with whitespace sends no token.
	if err := a.Update(t.Context(), &corev1.Secret{ObjectMeta: named(configMap), Data: map[string][]byte{"token": []byte(" \n")}}); err != nil {
		t.Fatal(err)
	}
	a.refuses(t, set, "API error with status code 403: ", "the request has no token")
}

// front is the input of image-digests for one image.
const front = `{"source": "image-digests", "tag": "feature-1", "images": {"front": "myorg/front"}}`

// digests returns the generator for two images with a tag.
func digests(tag string) string {
	return ours(`{source: image-digests, tag: "` + tag + `", images: {front: myorg/front, back: myorg/back}, onMissing: skip, onEmpty: allow}`)
}

func templatesOfEachKind(t *testing.T) {
	r := openRegistry(t)
	frontDigest := r.push(t, "myorg/front", "feature-1")
	backDigest := r.push(t, "myorg/back", "feature-1")
	g := start(t, r.config()+everyObject+`
static:
  hello:
    inputs: [big]
    sets: [{key1: val1, gloo: {port: 1000000, on: true, hosts: [a, b], hostsCsv: "a,b"}}]
`, objects(t, table(atRest), rollout("reviews", pausesAt10), workspaces))
	a := newArgoCD(t, g.api)
	ref := r.host + "/myorg/front@" + frontDigest
	for _, c := range []struct{ templates, generator, name, shown, want string }{
		{goTemplate, digests("feature-1"), "x", "{{.digestFront}} {{.digestBack}} {{.image.front.ref}} {{.image.tag}}", frontDigest + " " + backDigest + " " + ref + " feature-1"},
		{fastTemplate, digests("feature-1"), "x", "{{digestFront}} {{digestBack}} {{image.front.ref}} {{image.tag}}", frontDigest + " " + backDigest + " " + ref + " feature-1"},
		{goTemplate, ours(`{source: hello, big: 123456789}`), "{{.key1}}", "{{.gloo.port}} {{if .gloo.on}}on{{end}} {{index .gloo.hosts 1}} {{.gloo.hostsCsv}} {{.input.big}}", "1000000 on b a,b 123456789"},
		{fastTemplate, ours(`{source: hello, big: 123456789}`), "{{key1}}", "{{gloo.port}} {{gloo.on}} {{gloo.hosts.1}} {{gloo.hostsCsv}} {{input.big}}", "1000000 true b a,b 123456789"},
		{goTemplate, shopRoutes, "x", "{{.gloo.key}} {{.gloo.host}} {{.gloo.route.path}} {{.gloo.routeTable.labels.app}}", "in-cluster/shop/web/reviews shop.example.com /reviews shop"},
		{goTemplate, ours(`{source: gloo-routes, routeTableSelector: {name: web}, include: [weights]}`), "x", "{{(index .gloo.route.destinations 0).weight}}", "100"},
		{goTemplate, ours(`{source: rollouts}`), "x", "{{.rollout.key}} {{.rollout.phase}} {{if .rollout.inProgress}}busy{{end}} {{(index .gloo.routeTables 0).name}} {{.gloo.host}}", "in-cluster/shop/reviews Paused busy web shop.example.com"},
		{fastTemplate, ours(`{source: rollouts}`), "x", "{{rollout.key}} {{rollout.phase}} {{rollout.inProgress}} {{gloo.routeTables.0.name}} {{gloo.host}}", "in-cluster/shop/reviews Paused true web shop.example.com"},
		{goTemplate, ours(`{source: rollouts, include: [weights, steps]}`), "x", "{{.rollout.weights.canary}} {{.rollout.step.index}}/{{.rollout.step.count}}{{.rollout.configError}}", "10 1/2"},
		{fastTemplate, ours(`{source: rollouts, include: [weights, steps]}`), "x", "{{rollout.weights.canary}} {{rollout.step.index}}/{{rollout.step.count}}{{rollout.configError}}", "10 1/2"},
		{goTemplate, ours(`{source: gloo-workspaces, workspaces: [web]}`), "x", "{{.gloo.workspace}} {{.gloo.cluster}} {{.gloo.clusterLabels.region}} {{.gloo.namespacesCsv}} {{if .gloo.wildcard}}*{{end}}", "web c1 us shop,team-* *"},
		{fastTemplate, ours(`{source: gloo-workspaces, workspaces: [web]}`), "x", "{{gloo.workspace}} {{gloo.cluster}} {{gloo.clusterLabels.region}} {{gloo.namespaces.1}} {{gloo.wildcard}}", "web c1 us team-* true"},
		{fastTemplate, shopRoutes, "x", "{{gloo.key}} {{gloo.hosts.0}} {{gloo.route.path}} {{gloo.routeTable.labels.app}}", "in-cluster/shop/web/reviews shop.example.com /reviews shop"},
	} {
		set := applicationSet(t, c.templates, c.generator, c.name, c.shown)
		applications, _, err := a.generated(t, set)
		if err != nil || len(applications) != 1 || applications[0].Annotations["shown"] != c.want {
			t.Errorf("%s, %s: %v, %v, want %q", c.templates, c.shown, applications, err, c.want)
		}
	}
}

const clusters = `
static:
  clusters:
    sets:
    - {key: c1/web, gloo: {cluster: c1, slug: c1-web}}
    - {key: c2/web, gloo: {cluster: c2, slug: c2-web}}
`

func valuesAndSelector(t *testing.T) {
	a := newArgoCD(t, start(t, clusters).api)
	a.renders(t, applicationSet(t, goTemplate, ours(`{source: clusters}`, `values: {label: "probe-{{.gloo.slug}}"}`),
		"{{.gloo.slug}}", "{{.values.label}}"), "c1-web: probe-c1-web", "c2-web: probe-c2-web")
	a.renders(t, applicationSet(t, fastTemplate, ours(`{source: clusters}`, `values: {label: "probe-{{gloo.slug}}"}`),
		"{{gloo.slug}}", "{{values.label}}"), "c1-web: probe-c1-web", "c2-web: probe-c2-web")
	for templates, name := range map[string]string{goTemplate: "{{.gloo.slug}}", fastTemplate: "{{gloo.slug}}"} {
		a.renders(t, applicationSet(t, templates, ours(`{source: clusters}`)+"\n    selector: {matchLabels: {gloo.cluster: c2}}", name, ""), "c2-web: ")
	}
}

// Contrary to Argo CD's documents, templates cannot read `.generator.input.parameters`. The generator returns the input instead.
func generatorInput(t *testing.T) {
	a := newArgoCD(t, start(t, hello).api)
	const parameters = `{source: hello, key1: "given", map: {key1: nested}}`
	// The bytes of the value, as numbers.
	a.renders(t, applicationSet(t, goTemplate, ours(parameters), "{{.key1}}", "{{.generator.input.parameters.key1}}"),
		"val1: {[34 103 105 118 101 110 34]}", "val2: {[34 103 105 118 101 110 34]}")
	a.renders(t, applicationSet(t, goTemplate, ours(parameters), "{{.key1}}", "{{.generator.input.parameters.key1 | toJson | fromJson}}"),
		"val1: given", "val2: given")
	_, reason, err := a.generated(t, applicationSet(t, goTemplate, ours(parameters), "{{.key1}}", `{{index .generator.input.parameters.map "key1"}}`))
	refused(t, err, "can't index item of type v1.JSON")
	if reason != "RenderTemplateParamsError" {
		t.Errorf("the reason is %q", reason)
	}
	a.renders(t, applicationSet(t, fastTemplate, ours(parameters), "{{key1}}", "{{generator.input.parameters.key1}}"),
		"val1: {{generator.input.parameters.key1}}", "val2: {{generator.input.parameters.key1}}")

	a.renders(t, applicationSet(t, goTemplate, ours(parameters), "{{.key1}}", "{{.input.key1}} {{.input.map.key1}}"),
		"val1: given nested", "val2: given nested")
	a.renders(t, applicationSet(t, fastTemplate, ours(parameters), "{{key1}}", "{{input.key1}} {{input.map.key1}}"),
		"val1: given nested", "val2: given nested")
}

// previews returns the main use of a plugin generator: an Application for each pull request whose images are built.
func previews(t *testing.T, branches ...string) string {
	t.Helper()
	return matrix(pullRequests(t, branches...), digests("{{.branch_slug}}"))
}

func twoBranches(t *testing.T) {
	r := openRegistry(t)
	front := r.push(t, "myorg/front", "feature-1")
	r.push(t, "myorg/back", "feature-1")
	a := newArgoCD(t, start(t, r.config()).api)
	set := applicationSet(t, goTemplate, previews(t, "feature-1", "feature-2"), "fb-{{.number}}", "{{.digestFront}}")
	a.renders(t, set, "fb-11: "+front)
	// Argo CD requests the branches one after the other.
	asked := r.manifests()
	slices.Sort(asked[:min(2, len(asked))])
	if len(asked) < 3 || !slices.Equal(asked[:2], []string{"myorg/back:feature-1", "myorg/front:feature-1"}) {
		t.Errorf("asked for %v", asked)
	}
	// One of two images is not enough.
	r.push(t, "myorg/front", "feature-2")
	a = newArgoCD(t, start(t, r.config()).api)
	a.renders(t, set, "fb-11: "+front)
	r.push(t, "myorg/back", "feature-2")
	a = newArgoCD(t, start(t, r.config()).api)
	if applications, _, err := a.generated(t, set); err != nil || len(applications) != 2 {
		t.Errorf("generated %v, %v", applications, err)
	}
}

const secondChild = "failed to get params for second generator in the matrix generator: " +
	"child generator returned an error on parameter generation: error listing params: error get api 'shop': API error with status code "

func failingRegistry(t *testing.T) {
	r := openRegistry(t)
	for _, tag := range []string{"feature-1", "feature-2"} {
		r.push(t, "myorg/front", tag)
		r.push(t, "myorg/back", tag)
	}
	for _, status := range []int{500, 502, 503, 429, 404, 403, 401, 301, 204, 200} {
		r.fail("myorg/back", answering(status))
		// A new process, because a failure is cached for five seconds.
		g := start(t, r.config())
		newArgoCD(t, g.api).refuses(t, applicationSet(t, goTemplate, previews(t, "feature-1", "feature-2"), "fb-{{.number}}", ""), secondChild, "myorg/back")
	}
	hangUp := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	r.fail("myorg/back", hangUp)
	g := start(t, r.config())
	newArgoCD(t, g.api).refuses(t, applicationSet(t, goTemplate, previews(t, "feature-1"), "fb-{{.number}}", ""), secondChild, "myorg/back")
	r.fail("myorg/back", nil)
	time.Sleep(6 * time.Second)
	newArgoCD(t, g.api).renders(t, applicationSet(t, goTemplate, previews(t, "feature-1", "feature-2"), "fb-{{.number}}", ""), "fb-11: ", "fb-12: ")
}

// A registry gives the same answer for a missing repository and for one without permission.
func hiddenRepository(t *testing.T) {
	r := privateRegistry(t)
	front := r.push(t, "myorg/front", "feature-1")
	r.push(t, "myorg/back", "feature-1")
	set := applicationSet(t, goTemplate, previews(t, "feature-1"), "fb-{{.number}}", "{{.digestFront}}")
	newArgoCD(t, start(t, r.config()).api).refuses(t, set, secondChild, "myorg/")
	newArgoCD(t, start(t, r.configAs(t, registryUser, "wrong")).api).refuses(t, set, secondChild, "myorg/")

	a := newArgoCD(t, start(t, r.configAs(t, registryUser, registryPassword)).api)
	a.renders(t, set, "fb-11: "+front)
	// The repository is readable and lacks the tag: not built yet.
	a.renders(t, applicationSet(t, goTemplate, previews(t, "feature-2"), "fb-{{.number}}", ""))
	// The repository is not readable or does not exist, which cannot be distinguished.
	missing := matrix(pullRequests(t, "feature-1"), ours(`{source: image-digests, tag: feature-1, images: {front: myorg/frnot}}`))
	a.refuses(t, applicationSet(t, goTemplate, missing, "fb-{{.number}}", ""), secondChild, "myorg/frnot")
}

// The flat parameters of two generators must have different names.
func flatMatrix(t *testing.T) {
	r := openRegistry(t)
	front := r.push(t, "myorg/front", "feature-1")
	r.push(t, "myorg/back", "feature-1")
	g := start(t, r.config()+clusters+everyObject, objects(t, table(atRest), rollout("reviews", pausesAt10), workspaces))
	a := newArgoCD(t, g.api, cluster("c1", map[string]string{"gloo": "managed"}), cluster("c2", nil))
	a.renders(t, applicationSet(t, fastTemplate, matrix(pullRequests(t, "feature-1"), digests("{{branch_slug}}")), "fb-{{number}}", "{{branch}} {{digestFront}}"),
		"fb-11: feature-1 "+front)
	managed := "clusters: {selector: {matchLabels: {gloo: managed}}}"
	a.renders(t, applicationSet(t, fastTemplate, matrix(managed, ours(`{source: clusters}`)), "{{name}}-{{gloo.slug}}", "{{server}}"),
		"c1-c1-web: https://c1.example.com", "c1-c2-web: https://c1.example.com")
	a.renders(t, applicationSet(t, fastTemplate, matrix(managed, digests("feature-1")), "{{name}}", "{{digestFront}}"),
		"c1: "+front)
	routes := `{source: gloo-routes, routeTableSelector: {labels: {app: shop}}, cluster: "{{name}}", onEmpty: allow}`
	a.renders(t, applicationSet(t, fastTemplate, matrix("clusters: {}", ours(routes)), "{{name}}-{{gloo.route.name}}", "{{gloo.host}}"),
		"in-cluster-reviews: shop.example.com")
	rollouts := `{source: rollouts, cluster: "{{name}}", onEmpty: allow}`
	a.renders(t, applicationSet(t, fastTemplate, matrix("clusters: {}", ours(rollouts)), "{{name}}-{{rollout.name}}", "{{rollout.phase}} {{gloo.host}}"),
		"in-cluster-reviews: Paused shop.example.com")
	a.renders(t, applicationSet(t, fastTemplate, matrix(pullRequests(t, "feature-1"), ours(`{source: rollouts}`)), "{{number}}-{{rollout.name}}", "{{branch}}"),
		"11-reviews: feature-1")
	teams := `{source: gloo-workspaces, cluster: "{{name}}", onEmpty: allow}`
	a.renders(t, applicationSet(t, fastTemplate, matrix("clusters: {}", ours(teams)), "{{gloo.slug}}", "{{server}} {{gloo.namespacesCsv}}"),
		"ops-c1: https://c1.example.com ops", "ops-c2: https://c2.example.com ops", "web-c1: https://c1.example.com shop,team-*")
	a.renders(t, applicationSet(t, fastTemplate, matrix(pullRequests(t, "feature-1"), ours(`{source: clusters}`)), "{{number}}-{{gloo.slug}}", ""),
		"11-c1-web: ", "11-c2-web: ")
}

func unresolvedTemplates(t *testing.T) {
	r := openRegistry(t)
	a := newArgoCD(t, start(t, r.config()+hello).api)
	pulls := pullRequests(t, "feature-1")
	for templates, tag := range map[string]string{lenient: "{{.branch_slag}}", fastTemplate: "{{branch_slag}}"} {
		a.refuses(t, applicationSet(t, templates, matrix(pulls, digests(tag)), "x", ""), secondChild+"400: ", "unresolved template", "tag")
	}
	// A generator at the top level is not rendered.
	a.refuses(t, applicationSet(t, goTemplate, digests("{{.branch_slug}}"), "x", ""), "status code 400: ", "unresolved template")
	// With the option, Argo CD does not call the plugin.
	a.refuses(t, applicationSet(t, goTemplate, matrix(pulls, digests("{{.branch_slag}}")), "x", ""),
		"failed to replace parameters in generator", `map has no entry for key "branch_slag"`)
	if asked := r.manifests(); len(asked) != 0 {
		t.Errorf("the registry was asked for %v", asked)
	}
}

func mergedRows(t *testing.T) {
	r := openRegistry(t)
	front := r.push(t, "myorg/front", "main")
	r.push(t, "myorg/back", "main")
	g := start(t, r.config()+clusters+everyObject, objects(t, workspaces))
	a := newArgoCD(t, g.api, cluster("c1", nil), cluster("c3", nil))
	base := `list: {elements: [{app: front, team: shop}, {app: other, team: shop}]}`
	rows := ours(`{source: image-digests, tag: main, layout: rows, images: {front: myorg/front, back: myorg/back}}`)
	a.renders(t, applicationSet(t, goTemplate, merge("app", base, rows), "{{.app}}", `{{.team}} {{if hasKey . "digest"}}{{.digest}}{{end}}`),
		"front: shop "+front, "other: shop ")
	aliased := ours(`{source: clusters, alias: {name: gloo.cluster}}`)
	a.renders(t, applicationSet(t, goTemplate, merge("name", "clusters: {}", aliased), "{{.name}}", `{{.server}} {{dig "gloo" "slug" "" .}}`),
		"c1: https://c1.example.com c1-web", "c3: https://c3.example.com ", "in-cluster: https://kubernetes.default.svc ")
	web := ours(`{source: gloo-workspaces, workspaces: [web], alias: {name: gloo.cluster}}`)
	a.renders(t, applicationSet(t, goTemplate, merge("name", "clusters: {}", web), "{{.name}}", `{{.server}} {{dig "gloo" "namespacesCsv" "" .}}`),
		"c1: https://c1.example.com shop,team-*", "c3: https://c3.example.com ", "in-cluster: https://kubernetes.default.svc ")
	// Two workspaces contain the cluster.
	all := ours(`{source: gloo-workspaces, alias: {name: gloo.cluster}}`)
	_, _, err := a.generated(t, applicationSet(t, goTemplate, merge("name", "clusters: {}", all), "{{.name}}", ""))
	refused(t, err, "the parameters from a generator were not unique by the given mergeKeys")
}

// If both children have a key, an empty or false value overrides like any other.
func emptyOverrides(t *testing.T) {
	a := newArgoCD(t, start(t, `
static:
  flags:
    sets: [{app: front, enabled: false, note: ""}]
`).api)
	base := `list: {elements: [{app: front, enabled: true, note: base}]}`
	a.renders(t, applicationSet(t, goTemplate, merge("app", base, ours(`{source: flags}`)), "{{.app}}", "{{.enabled}} {{.note}}"), "front: false ")
	a.renders(t, applicationSet(t, goTemplate, matrix(base, ours(`{source: flags}`)), "{{.app}}", "{{.enabled}} {{.note}}"), "front: true base")
	empty := `list: {elements: [{app: front, enabled: "", note: ""}]}`
	a.renders(t, applicationSet(t, goTemplate, matrix(empty, ours(`{source: flags}`)), "{{.app}}", "{{.enabled}} {{.note}}"), "front:  ")
}

// documented has the digests of Argo CD's page, by the path of their manifests.
var documented = map[string]string{
	"/v2/myorg/front/manifests/feature-branch-1": "sha256:a3f18c17771cc1051b790b453a0217b585723b37f14b413ad7c5b12d4534d411",
	"/v2/myorg/back/manifests/feature-branch-1":  "sha256:4411417d614d5b1b479933b7420079671facd434fd42db196dc1f4cc55ba13ce",
	"/v2/myorg/front/manifests/feature-branch-2": "sha256:7c20b927946805124f67a0cb8848a8fb1344d16b4d0425d63aaa3f2427c20497",
	"/v2/myorg/back/manifests/feature-branch-2":  "sha256:e55e7e40700bbab9e542aba56c593cb87d680cefdfba3dd2ab9cfcb27ec384c2",
}

// The two ApplicationSets of Argo CD's page on plugin generators, with its ConfigMaps, its Secret and its names.
func documentedSets(t *testing.T) {
	registry := serve(t, func(writer http.ResponseWriter, request *http.Request) {
		digest, found := documented[request.URL.Path]
		if !found {
			http.NotFound(writer, request)
			return
		}
		if request.Method != http.MethodHead {
			// The manifests of the page do not exist.
			writer.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		writer.Header().Set("Docker-Content-Digest", digest)
	})
	config, err := os.ReadFile(filepath.Join(samples, "document.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	g := start(t, strings.ReplaceAll(string(config), "localhost:5000", strings.TrimPrefix(registry, "http://")))
	g.admit(t, "document", "strong-password")
	const service = "myplugin.plugin-ns.svc.cluster.local."
	resolver.Store(service, strings.TrimPrefix(g.api, "http://"))
	access := map[string]string{"baseUrl": "http://" + service, "token": "$plugin.myplugin.token"}
	a := newArgoCD(t, "",
		&corev1.ConfigMap{ObjectMeta: named("my-plugin"), Data: access},
		&corev1.ConfigMap{ObjectMeta: named("cm-plugin"), Data: access},
		&corev1.Secret{ObjectMeta: named("argocd-secret"), Data: map[string][]byte{"plugin.myplugin.token": []byte("strong-password")}},
	)
	validator := schema(t)
	generated := func(file string) map[string]v1alpha1.Application {
		applications, _, err := a.generated(t, sample(t, validator, file, "feature-branch-1", "feature-branch-2"))
		if err != nil {
			t.Fatal(err)
		}
		byName := map[string]v1alpha1.Application{}
		for _, application := range applications {
			byName[application.Name] = application
		}
		if len(applications) != 2 || len(byName) != 2 {
			t.Fatalf("%s: generated %v", file, applications)
		}
		return byName
	}

	mine := generated("document-myplugin.yaml")
	for _, key1 := range []string{"val1", "val2"} {
		want := map[string]string{
			"example.from.input.parameters": "value1", "example.from.values": "something", "example.from.plugin.output": "val2",
		}
		if got := mine["myplugin-"+key1].Annotations; !maps.Equal(got, want) {
			t.Errorf("%s: annotations %v, want %v", key1, got, want)
		}
	}

	previews := generated("document-fb-matrix.yaml")
	for _, branch := range []string{"feature-branch-1", "feature-branch-2"} {
		spec := previews["fb-matrix-"+branch].Spec
		digest := func(image string) string { return documented["/v2/myorg/"+image+"/manifests/"+branch] }
		want := "front:\n  image: myregistry:" + branch + "@" + digest("front") + "\n" +
			"back:\n  image: myregistry:" + branch + "@" + digest("back") + "\n"
		if spec.Source == nil || spec.Source.Helm.Values != want || spec.Info[0].Value != "https://git.example.com/org/repo/tree/"+branch {
			t.Errorf("%s: generated %+v, want %q", branch, spec, want)
		}
	}
}

// With the rule argo-branch-slug, the tag of a branch is equal to Argo CD's `branch_slug`.
func argoSlugs(t *testing.T) {
	registry := serve(t, func(writer http.ResponseWriter, request *http.Request) {
		if request.Method != http.MethodHead {
			// The manifests of the page do not exist.
			writer.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		writer.Header().Set("Docker-Content-Digest", documented["/v2/myorg/front/manifests/feature-branch-1"])
	})
	g := start(t, fmt.Sprintf(`
imageDigests: {registries: {%q: {plainHttp: true}}}
profiles:
  default:
    tagFrom: {parameter: branch, rule: argo-branch-slug}
    fixed: {images: {front: myorg/front}}
`, strings.TrimPrefix(registry, "http://")))
	branches := []string{
		"feature/ABC-12_new.login", "a/b@c&d", "release/2026.10+rc1", "dependabot/npm_and_yarn/types/node-22.1.0", `a'b"c`,
		"a__b--c_", "-a-", "a\u2019b\u2012c\u2013d\u2014e\u2015f", "a🚀b", "x\U0002a6d6y",
		strings.Repeat("x", 60) + "/yyyy", strings.Repeat("x", 50) + "/y", strings.Repeat("x", 49) + "/y/z", "a/" + strings.Repeat("x", 49),
	}
	// Every Latin letter with the same transliteration in Argo CD and in the generator.
	letters := "a"
	for letter := rune(0x80); letter <= 0x24f; letter++ {
		if letter == 0x241 || letter == 0x242 {
			continue
		}
		letters += string(letter) + "a"
		if utf8.RuneCountInString(letters) > 12 {
			branches = append(branches, letters)
			letters = "a"
		}
	}
	a := newArgoCD(t, g.api)
	set := applicationSet(t, goTemplate, matrix(pullRequests(t, append(branches, letters)...), ours(`{branch: "{{.branch}}"}`)),
		"x-{{.number}}", "{{.branch_slug}} {{.image.tag}}")
	applications, _, err := a.generated(t, set)
	if err != nil || len(applications) != len(branches)+1 {
		t.Fatalf("generated %d Applications, %v", len(applications), err)
	}
	for _, application := range applications {
		shown := application.Annotations["shown"]
		if slug, tag, _ := strings.Cut(shown, " "); slug == "" || slug != tag {
			t.Errorf("Argo CD's slug and the tag: %q", shown)
		}
	}
}
